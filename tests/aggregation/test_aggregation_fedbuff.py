"""FedBuff."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedbuff import FedBuff
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.pacing.buffered import Buffered
from muster.updates.table import Updates


def stale(ages):
    ages = np.asarray(ages)
    return {"staleness": ages, "version": ages.max() - ages}


def test_worked_example(advance) -> None:
    """Weights 1, 0.707107 and 0.5 of movements 1, 2 and 4; their sum by the number, or by the weights' sum."""
    ages = stale([0, 1, 3])
    by_count = advance(FedBuff(), [0.0], [[1.0], [2.0], [4.0]], **ages)
    np.testing.assert_allclose(by_count.parameters, [1.471405], atol=1e-6)
    by_weights = advance(FedBuff(norm="weights"), [0.0], [[1.0], [2.0], [4.0]], **ages)
    np.testing.assert_allclose(by_weights.parameters, [2.0], atol=1e-6)
    np.testing.assert_allclose(by_count.weights, np.array([1, 0.707107, 0.5]) / 2.207107, atol=1e-6)


def textbook(current, movements, ages, *, base=None, rate=1.0, norm="count", a=0.5) -> np.ndarray:
    """One answer after the other, as the paper's server loop adds them up."""
    total, weights, count = np.zeros(len(current)), 0.0, 0.0
    for k, movement in enumerate(movements):
        own = 1.0 if base is None else base[k]
        factor = own / (1 + ages[k]) ** a
        total += factor * movement.astype(float)
        weights, count = weights + factor, count + own
    return current + rate * total / (count if norm == "count" else weights)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    ages=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    norm=st.sampled_from(["count", "weights"]),
    by=st.sampled_from(["equal", "samples"]),
    rate=st.sampled_from([0.3, 1.0]),
)
def test_equals_the_textbook(layout, cohort, *, seed, ages, norm, by, rate) -> None:
    rng = np.random.default_rng(seed)
    movements = rng.normal(size=(len(ages), 5)).astype(np.float32)
    sizes, current = rng.integers(1, 50, len(ages)), rng.normal(size=5).astype(np.float32)
    server = FedBuff(norm=norm, weights=by, server_lr=rate)
    got = server.aggregate(current, cohort(movements, sizes=sizes, **stale(ages)), layout([5]))
    expected = textbook(current, movements, ages, base=sizes if by == "samples" else None, rate=rate, norm=norm)
    np.testing.assert_allclose(got.parameters, expected, rtol=1e-5, atol=1e-5)
    assert got.weights.sum() == pytest.approx(1)


def test_fresh_answers_have_the_bits_of_fedavg(layout, cohort) -> None:
    spec, rng = layout([50], buffers=4, counters=1), np.random.default_rng(1)
    current, updates = rng.normal(size=spec.size).astype(np.float32), cohort(rng.normal(size=(6, spec.size)))
    got = FedBuff().aggregate(current, updates, spec)
    np.testing.assert_array_equal(
        got.parameters, FedAvg(weights="equal").aggregate(current, updates, spec).parameters
    )


def test_running_statistics_are_averaged_whatever_the_step(layout, cohort) -> None:
    spec = layout([2], buffers=1)
    updates = cohort([[1.0, 1.0, 4.0], [1.0, 1.0, 8.0]], **stale([3, 3]))
    result = FedBuff().aggregate(np.zeros(3, dtype=np.float32), updates, spec)
    np.testing.assert_allclose(result.parameters, [0.5, 0.5, 6.0])


def test_one_optimum_is_reached_whoever_answers_how_often(agreed) -> None:
    result = agreed.run(FedBuff(), 400)
    np.testing.assert_allclose(result.parameters, [3.0, -2.0], atol=1e-4)
    assert max(agreed.arrivals(result)[1]) > 5


@pytest.mark.parametrize(("a", "away"), [(0.0, 3.11), (0.5, 3.83), (1.0, 4.14)])
def test_where_clients_differ_it_ends_at_the_optimum_of_those_who_answer_often(asynchronous, a, away) -> None:
    """Every client counts by how often it answers and by its discounts: the bias that CA²FL removes.

    Slow clients are rare, and their answers are old: the stronger the discount, the further from the optimum.
    """
    result = asynchronous.run(FedBuff(staleness_a=a), 600)
    who, ages = asynchronous.arrivals(result)
    counts = np.bincount(who[200:], weights=(1.0 + ages[200:]) ** -a, minlength=3)
    biased, fair = asynchronous.weighted_optimum(counts), asynchronous.problem.optimum
    assert np.linalg.norm(asynchronous.centre - biased) < 0.05
    assert np.linalg.norm(asynchronous.centre - fair) == pytest.approx(away, abs=0.02)


def test_with_equal_devices_and_everybody_in_the_buffer_it_reaches_the_optimum(asynchronous) -> None:
    asynchronous.speeds = (1.0, 1.0, 1.0)
    result = asynchronous.run(FedBuff(), 800, pacing=Buffered(in_flight=3, k=3), per_round=3)
    np.testing.assert_allclose(result.parameters, asynchronous.problem.optimum, atol=1e-4)


@pytest.mark.parametrize("most", [None, 0.5, 0.6])
def test_a_cap_on_weights_does_not_shorten_the_step(most):
    spec = ParameterSpec((SpecEntry("w", (1,), 0, 1),), (), ())
    updates = Updates.from_movements([[1.0], [1.0]], staleness=np.array([0, 3]))
    step = FedBuff(max_weight=most).aggregate(np.zeros(1, dtype=np.float32), updates, spec).parameters[0]
    assert step == pytest.approx(0.75)
