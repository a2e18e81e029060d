"""Weights that fall with staleness, and the aggregators that have them as an option."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muster.aggregation import aggregators
from muster.aggregation.base import DiscountingAggregator
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fednova import FedNova
from muster.aggregation.geometric_median import GeometricMedian, weiszfeld
from muster.aggregation.norm_bounding import NormBounding
from muster.aggregation.simagg import SimAgg, distances, mixed_weights
from muster.aggregation.staleness import discounts, hinge, polynomial
from muster.core.errors import ConfigError

ages = arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 200))
DISCOUNTING = [name for name in aggregators if issubclass(aggregators.get(name), DiscountingAggregator)]


def textbook(kind: str, age: int, a: float, b: int) -> float:
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return (age + 1) ** -a
    return 1.0 if age <= b else 1.0 / (a * (age - b) + 1)


def test_worked_examples() -> None:
    np.testing.assert_allclose(polynomial(np.array([0, 1, 3])), [1, 0.707107, 0.5], atol=1e-6)
    np.testing.assert_allclose(hinge(np.array([4, 5, 6])), [1, 1 / 11, 1 / 21])
    np.testing.assert_array_equal(discounts("constant", np.array([0, 7])), [1, 1])
    np.testing.assert_allclose(discounts("hinge", np.array([6]), a=0.5, b=2), [1 / 3])


@pytest.mark.parametrize("kind", ["constant", "polynomial", "hinge"])
@given(ages=ages, a=st.floats(0, 20), b=st.integers(0, 10))
def test_equals_the_textbook_starts_at_one_and_never_grows(kind, ages, a, b) -> None:
    got = discounts(kind, ages, a, b)
    np.testing.assert_allclose(got, [textbook(kind, age, a, b) for age in ages.tolist()])
    assert (got > 0).all()
    assert (got <= 1).all()
    assert (got[ages == 0] == 1).all()
    assert (np.diff(got[np.argsort(ages)]) <= 0).all()


def test_without_an_a_each_kind_has_the_papers() -> None:
    ages = np.array([1, 5])
    np.testing.assert_array_equal(discounts("polynomial", ages), polynomial(ages, 0.5))
    np.testing.assert_array_equal(discounts("hinge", ages), hinge(ages, 10.0, 4))


def test_who_has_the_option() -> None:
    assert set(DISCOUNTING) >= {
        "fedavg",
        "fedavgm",
        "fedadam",
        "fedbuff",
        "fedasync",
        "simprox",
        "simagg",
        "fednova",
    }


@pytest.mark.parametrize("name", DISCOUNTING)
@pytest.mark.parametrize("kind", ["constant", "polynomial", "hinge"])
def test_fresh_answers_have_the_same_bits_whatever_the_option(layout, cohort, population, name, kind) -> None:
    spec, rng = layout([40], buffers=3, counters=1), np.random.default_rng(0)
    current = rng.normal(size=spec.size).astype(np.float32)
    updates = cohort(rng.normal(size=(5, spec.size)), sizes=[3, 1, 4, 1, 5])
    results = []
    for options in ({}, {"staleness": kind, "staleness_a": 3.0, "staleness_b": 0}):
        aggregator = aggregators.build(name, options)
        aggregator.prepare(population(10))
        results.append(aggregator.aggregate(current, updates, spec))
    np.testing.assert_array_equal(results[0].parameters, results[1].parameters)
    np.testing.assert_array_equal(results[0].weights, results[1].weights)


@pytest.mark.parametrize("name", sorted(set(DISCOUNTING) - {"scaffold", "geometric-median", "fadas"}))
def test_an_older_answer_counts_less(advance, name) -> None:
    """Everybody sends the same: only age tells them apart."""
    drifts = {3: np.zeros(2, dtype=np.float32)}
    options = {"staleness": np.array([0, 0, 4]), "version": np.array([7, 7, 3]), "drifts": drifts}
    aggregator = aggregators.build(name, {"staleness": "polynomial", "staleness_a": 1.0})
    weights = advance(aggregator, [0.0, 0.0], np.ones((3, 2)), **options).weights
    np.testing.assert_allclose(weights, [5 / 11, 5 / 11, 1 / 11])


def test_fedavg_weighs_samples_times_discount(advance) -> None:
    stale = {"staleness": np.array([0, 3]), "version": np.array([3, 0]), "sizes": [30, 10]}
    plain = advance(FedAvg(), [0.0], [[1.0], [4.0]], **stale)
    np.testing.assert_allclose(plain.parameters, [1.75])
    older = advance(FedAvg(staleness="polynomial"), [0.0], [[1.0], [4.0]], **stale)
    np.testing.assert_allclose(older.weights, [30 / 35, 5 / 35])
    np.testing.assert_allclose(older.parameters, [50 / 35], rtol=1e-6)


def test_the_selectors_weights_are_discounted_too(advance) -> None:
    options = {"staleness": np.array([0, 3]), "version": np.array([3, 0]), "weights": np.array([1.0, 2.0])}
    result = advance(FedAvg(staleness="polynomial"), [0.0], [[1.0], [4.0]], **options)
    np.testing.assert_allclose(result.weights, [0.5, 0.5])


def test_norm_bounding_and_the_geometric_median_discount_their_weights(advance) -> None:
    movements, stale = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]), np.array([0, 3, 8])
    options = {"staleness": stale, "version": 8 - stale}
    discounted = polynomial(stale) / polynomial(stale).sum()
    bounded = advance(
        NormBounding(weights="equal", bound=100.0, staleness="polynomial"), [0, 0], movements, **options
    )
    np.testing.assert_allclose(bounded.parameters, discounted @ movements, rtol=1e-6)
    median = advance(GeometricMedian(staleness="polynomial"), [0, 0], movements, **options)
    np.testing.assert_allclose(median.weights, weiszfeld(movements @ movements.T, discounted), rtol=1e-6)


def test_simagg_measures_the_models_that_clients_sent(advance) -> None:
    """The first two moved alike, but from different models: what they sent is far apart."""
    movements = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], dtype=np.float32)
    drift = np.array([-6.0, 2.0], dtype=np.float32)
    options = {"staleness": np.array([0, 2, 0]), "version": np.array([5, 3, 5]), "drifts": {3: drift}}
    result = advance(SimAgg(staleness="hinge", staleness_b=0, staleness_a=1.0), [1, 1], movements, **options)
    models = movements + np.array([[0, 0], drift, [0, 0]], dtype=np.float32)
    expected = mixed_weights(distances(models), np.ones(3, dtype=int)) * [1, 1 / 3, 1]
    np.testing.assert_allclose(result.weights, expected / expected.sum(), rtol=1e-6)
    # What is averaged are movements: the old model is not gone back to.
    np.testing.assert_allclose(result.parameters, 1 + result.weights @ movements, rtol=1e-6)


def test_fednova_counts_the_work_of_rounds_with_another_learning_rate(layout, cohort) -> None:
    """Gradients 1 and 3; the late answer is from a round with ten times the rate. Both gradients count alike."""
    spec, results = layout([1]), []
    for rates, movements in (((0.1, 0.1), (-0.2, -0.6)), ((1.0, 0.1), (-2.0, -0.6))):
        updates = cohort(np.array(movements)[:, None], steps=[2, 2], staleness=np.array([1, 0]))
        updates = type(updates)(**{**vars(updates), "lr": np.array(rates)})
        results.append(FedNova().aggregate(np.zeros(1, dtype=np.float32), updates, spec).parameters[0])
    mean_gradient = 2.0
    assert results[0] == pytest.approx(-0.1 * 2 * mean_gradient)
    # τ_eff is the mean amount of work: (2 · 1.0 + 2 · 0.1) / 2 of it.
    assert results[1] == pytest.approx(-(2 * 1.0 + 2 * 0.1) / 2 * mean_gradient)


@pytest.mark.parametrize(
    "option",
    [{"staleness_a": -1.0}, {"staleness_a": float("nan")}, {"staleness_a": float("inf")}, {"staleness_b": -1}],
)
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        FedAvg(**option).check(population())


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="staleness"):
        aggregators.build("fedavg", {"staleness": "linear"}, "aggregation")
