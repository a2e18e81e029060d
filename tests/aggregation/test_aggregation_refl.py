"""REFL's aggregation of stale answers."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.refl import REFL, deviations, stale_factors
from muster.core.errors import ConfigError
from muster.pacing.deadline import Deadline


def stale(ages):
    ages = np.asarray(ages)
    return {"staleness": ages, "version": ages.max() - ages}


def test_worked_example(advance) -> None:
    """Fresh 1 and 3, so ū = 2; stale 4 (τ = 1) and 3 (τ = 3).

    û = (4 + 2 · 2)/3 and (3 + 4)/3: Λ = (2/3)²/4 = 1/9 and (1/3)²/4 = 1/36, quotients 1 and 1/4. Factors 0.65/2 +
    0.35 (1 − e^−1) = 0.546242 and 0.65/4 + 0.35 (1 − e^−¼) = 0.239920.
    """
    result = advance(REFL(), [0.0], [[1.0], [3.0], [4.0], [3.0]], **stale([0, 0, 1, 3]))
    factors = np.array([1, 1, 0.546242, 0.239920])
    np.testing.assert_allclose(result.weights, factors / factors.sum(), atol=1e-6)
    np.testing.assert_allclose(result.parameters, factors @ [1, 3, 4, 3] / factors.sum(), rtol=1e-5)


def textbook(rows, ages, beta=0.35, divisor=1.0) -> np.ndarray:
    """As the paper writes it, with û_i and Λ_i."""
    fresh = [row for row, age in zip(rows, ages, strict=True) if age == 0]
    n, lam = len(fresh), {}
    for i, age in enumerate(ages):
        if age and n:
            mean = sum(fresh) / n
            with_it = (rows[i] + n * mean) / (n + 1)
            lam[i] = float(np.sum((mean - with_it) ** 2) / np.sum(mean**2))
    top = max(lam.values(), default=0.0)
    weights = []
    for i, age in enumerate(ages):
        share = lam.get(i, 0.0) / top if top else 0.0
        weights.append(1.0 if age == 0 else (1 - beta) / (age + 1) + beta * (1 - math.exp(-share) / divisor))
    return np.array(weights) / sum(weights)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    ages=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    beta=st.floats(0, 0.99),
    divisor=st.sampled_from([1.0, 10.0]),
)
def test_equals_the_textbook(layout, cohort, *, seed, ages, beta, divisor) -> None:
    rows = np.random.default_rng(seed).normal(size=(len(ages), 5)).astype(np.float32)
    server = REFL(beta=beta, boost_divisor=divisor)
    result = server.aggregate(np.zeros(5, dtype=np.float32), cohort(rows, **stale(ages)), layout([5]))
    expected = textbook(rows.astype(float), ages, beta, divisor)
    np.testing.assert_allclose(result.weights, expected, atol=1e-9)
    np.testing.assert_allclose(result.parameters, expected @ rows, rtol=1e-4, atol=1e-5)


@given(ages=st.lists(st.integers(1, 50), min_size=2, max_size=6), beta=st.floats(0, 1))
def test_factors_fall_with_age_rise_with_difference_and_stay_below_a_fresh_one(ages, beta) -> None:
    ordered, apart = np.sort(ages), np.linspace(0, 1, len(ages))
    assert (np.diff(stale_factors(ordered, np.zeros(len(ages)), beta)) <= 1e-12).all()
    assert (np.diff(stale_factors(np.full(len(ages), 3), apart, beta)) >= -1e-12).all()
    assert (stale_factors(ordered, apart, beta) <= 1).all()


def test_fresh_answers_have_the_bits_of_an_equal_mean(layout, cohort) -> None:
    spec, rng = layout([50], buffers=3, counters=1), np.random.default_rng(1)
    current, updates = rng.normal(size=spec.size).astype(np.float32), cohort(rng.normal(size=(6, spec.size)))
    got = REFL().aggregate(current, updates, spec)
    mean = FedAvg(weights="equal").aggregate(current, updates, spec)
    # Counters are copied, from the client in the middle or, in a stream, from the one with the largest weight.
    np.testing.assert_allclose(got.parameters[spec.averaged], mean.parameters[spec.averaged], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got.weights, 1 / 6)


def test_where_nobody_is_fresh_only_age_counts(advance) -> None:
    result = advance(REFL(), [0.0], [[1.0], [9.0]], **stale([1, 3]))
    np.testing.assert_allclose(result.weights, [2 / 3, 1 / 3])


def test_fresh_ones_that_do_not_move_and_stale_ones_that_agree_with_them() -> None:
    rows, equal = np.array([[0.0], [2.0], [1.0]], dtype=np.float32), np.full(3, 1 / 3)
    fresh = np.array([True, False, False])
    # ‖ū‖ = 0 would make every Λ infinite; their quotients stay.
    np.testing.assert_allclose(deviations(rows, fresh, equal), [0, 1, 0.25])
    np.testing.assert_array_equal(deviations(np.ones((3, 4), dtype=np.float32), fresh, equal), 0)


def test_running_statistics_do_not_count_as_difference(layout, cohort) -> None:
    spec, rows = layout([2], buffers=1), np.array([[1, 0, 0], [0, 1, 1e4], [2, 0, -1e4]], dtype=np.float32)
    tame = rows.copy()
    tame[:, 2] = 0
    results = [
        REFL().aggregate(np.zeros(3, dtype=np.float32), cohort(some, **stale([0, 2, 1])), spec)
        for some in (rows, tame)
    ]
    np.testing.assert_array_equal(results[0].weights, results[1].weights)


def test_one_optimum_is_reached_whoever_answers_how_often(agreed) -> None:
    result = agreed.run(REFL(), 400)
    np.testing.assert_allclose(result.parameters, [3.0, -2.0], atol=1e-4)
    assert max(agreed.arrivals(result)[1]) > 5


def test_late_answers_bring_it_nearer_to_the_optimum_than_throwing_them_away(asynchronous) -> None:
    """The slowest client (100 s) never meets the deadline (60 s): thrown away, it has no say at all.

    Used late, it arrives in every third round with τ = 2 (rounds of 60, 33 and 33 s) beside two fresh answers: its
    share is f/(2 + f) of those rounds with f = 0.65/3 + 0.35 (1 − e^−1). So it has some say, but less than others.
    """
    ends = {}
    for late in ("discard", "use"):
        pacing = Deadline(seconds=60.0, late=late)
        ends[late] = asynchronous.run(REFL(), 600, pacing=pacing, per_round=3)
    without = asynchronous.weighted_optimum(np.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(ends["discard"].parameters, without, atol=1e-2)
    who, ages = asynchronous.arrivals(ends["use"])
    assert set(ages[who == 2].tolist()) == {2}
    factor = 0.65 / 3 + 0.35 * (1 - math.exp(-1))
    share = factor / (2 + factor) / 3
    predicted = asynchronous.weighted_optimum(np.array([(1 - share) / 2, (1 - share) / 2, share]))
    np.testing.assert_allclose(ends["use"].parameters, predicted, atol=0.1)
    fair = asynchronous.problem.optimum
    assert np.linalg.norm(ends["use"].parameters - fair) < np.linalg.norm(without - fair) - 0.5


@pytest.mark.parametrize("option", [{"beta": 1.1}, {"beta": -0.1}, {"boost_divisor": 0.5}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        REFL(**option).check(population())
