"""SimProx."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muster.aggregation._gram import InnerProducts
from muster.aggregation.simprox import (
    Post,
    SimProx,
    cosines_of_updates,
    gaussian,
    similarities,
    weights,
    weights_from,
)
from muster.core.errors import ConfigError
from muster.pacing.buffered import Buffered

MODELS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
GLOBAL = np.array([0.5, 0.5])


def textbook(models, global_model, previous=None, lam=0.7, threshold=0.9) -> np.ndarray:
    """The paper's equations one by one, with loops over pairs."""
    m = len(models)
    if m == 1:
        return np.ones(1)

    def cosine(a, b) -> float:
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b / norms) if norms else 0.0

    pairs = [(i, j) for i in range(m) for j in range(i + 1, m)]
    sigma = sum(np.linalg.norm(models[i] - models[j]) for i, j in pairs) / len(pairs)
    mean = sum(cosine(w, global_model) for w in models) / m
    if mean < threshold:
        lam = lam * max(mean, 0) / threshold
    alpha = np.zeros(m)
    for i in range(m):
        total = 0.0
        for j in range(m):
            if j != i:
                distance = np.linalg.norm(models[i] - models[j])
                near = math.exp(-(distance**2) / (2 * sigma**2)) if sigma else 1.0
                total += lam * cosine(models[i], models[j]) + (1 - lam) * near
        start = global_model if previous is None else previous[i]
        alpha[i] = math.exp(-np.linalg.norm(models[i] - start)) * (1 + total / (m - 1))
    alpha = alpha / alpha.sum()
    return np.exp(alpha) / np.exp(alpha).sum()


def test_worked_example() -> None:
    np.testing.assert_allclose(weights(MODELS, GLOBAL, threshold=0.5), [0.326403, 0.326403, 0.347195], atol=1e-6)
    np.testing.assert_allclose(weights(MODELS, GLOBAL), [0.326899, 0.326899, 0.346203], atol=1e-6)
    shares = weights(MODELS, GLOBAL, threshold=0.5, post="normalise")
    np.testing.assert_allclose(shares, [0.312749, 0.312749, 0.374503], atol=1e-6)


def test_worked_example_as_an_aggregation(advance) -> None:
    result = advance(SimProx(threshold=0.5), GLOBAL, MODELS - GLOBAL, sizes=[1, 100, 10])
    np.testing.assert_allclose(result.parameters, [0.673597, 0.673597], atol=1e-6)
    np.testing.assert_allclose(result.weights, [0.326403, 0.326403, 0.347195], atol=1e-6)


def test_gaussian_similarity_of_the_worked_example() -> None:
    squared = ((MODELS[:, None] - MODELS[None]) ** 2).sum(axis=2)
    similarity = gaussian(squared)
    np.testing.assert_allclose(similarity[0, 1], 0.462052, atol=1e-6)
    np.testing.assert_allclose(similarity[0, 2], 0.679744, atol=1e-6)


def test_similarities_of_the_worked_example() -> None:
    movements = MODELS - GLOBAL
    inner = InnerProducts(movements @ movements.T, movements @ GLOBAL, float(GLOBAL @ GLOBAL))
    between, to_global = cosines_of_updates(inner)
    np.testing.assert_allclose(between[np.triu_indices(3, 1)], [0, 0.707107, 0.707107], atol=1e-6)
    assert to_global.mean() == pytest.approx(0.804738, abs=1e-6)
    mean = (similarities(inner, threshold=0.5).sum(axis=1) - 1) / 2
    np.testing.assert_allclose(mean, [0.418757, 0.418757, 0.698898], atol=1e-6)
    # Below the threshold λ shrinks to 0.625907, and the first two models have cosine 0.
    assert similarities(inner, threshold=0.9)[0, 1] == pytest.approx((1 - 0.625907) * 0.462052, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_cosines_do_not_depend_on_how_long_models_are(scale) -> None:
    movements, model = scale * (MODELS - GLOBAL), scale * GLOBAL
    inner = InnerProducts(movements @ movements.T, movements @ model, float(model @ model))
    between, to_global = cosines_of_updates(inner)
    np.testing.assert_allclose(between[np.triu_indices(3)], [1, 0, 0.5**0.5, 1, 0.5**0.5, 1], atol=1e-9)
    np.testing.assert_allclose(to_global, [0.5**0.5, 0.5**0.5, 1], atol=1e-9)


def test_long_changes_do_not_underflow() -> None:
    change = np.array([800.0, 801.0, 805.0])
    inner = InnerProducts(np.diag(np.full(3, 1.0)), np.zeros(3), 0.0)
    shares = weights_from(inner, change, post="normalise")
    np.testing.assert_allclose(shares, [0.727475, 0.267623, 0.004902], atol=1e-6)


#: A grid: models are either equal or visibly different.
values = st.integers(-80, 80).map(lambda n: n / 16)


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 7), st.just(6)), elements=values),
    arrays(np.float32, 6, elements=values),
)
def test_equals_the_textbook_on_any_models(models, global_model) -> None:
    models, global_model = models.astype(float), global_model.astype(float)
    got = weights(models, global_model)
    np.testing.assert_allclose(got, textbook(models, global_model), atol=1e-6)
    assert (got >= 0).all()
    assert got.sum() == pytest.approx(1)
    # What the softmax of shares does, whatever the clients send.
    assert got.max() / got.min() <= math.e + 1e-9


@settings(max_examples=20, deadline=None)
@given(arrays(np.float32, (4, 5), elements=values), arrays(np.float32, (4, 5), elements=values))
def test_change_from_a_previous_model(models, previous) -> None:
    start = np.ones(5)
    got = weights(models, start, previous)
    np.testing.assert_allclose(got, textbook(models.astype(float), start, previous.astype(float)), atol=1e-6)


def test_similarity_from_movements_equals_similarity_from_models(advance) -> None:
    rng = np.random.default_rng(0)
    current = rng.normal(size=3000).astype(np.float32)
    movements = (0.1 * rng.normal(size=(6, 3000))).astype(np.float32)
    result = advance(SimProx(), current, movements)
    expected = textbook(current.astype(float) + movements.astype(float), current.astype(float))
    np.testing.assert_allclose(result.weights, expected, atol=1e-9)


def test_bounds_of_the_softmax_are_reached_in_the_limit() -> None:
    inner = InnerProducts(np.eye(6), np.zeros(6), 0.0)
    got = weights_from(inner, np.array([0.0, 900, 900, 900, 900, 900]))
    assert got.max() == pytest.approx(0.3522, abs=1e-4)
    assert got.min() == pytest.approx(0.1296, abs=1e-4)


def test_temperature_widens_the_range_and_one_is_the_paper() -> None:
    plain = weights(MODELS, GLOBAL)
    sharp = weights(MODELS, GLOBAL, temperature=0.1)
    shares = weights(MODELS, GLOBAL, post="normalise")
    assert sharp.max() / sharp.min() > plain.max() / plain.min()
    np.testing.assert_allclose(sharp, np.exp(10 * shares) / np.exp(10 * shares).sum())


def test_opposite_models_are_told_apart_by_nothing() -> None:
    models = np.array([[1.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_allclose(weights(models, np.zeros(2), lam=1.0), [0.5, 0.5])


@pytest.mark.parametrize("post", ["softmax", "normalise"])
def test_models_that_an_estimate_makes_opposite_count_the_same(post: Post) -> None:
    """A sketch may say so of two models that are near the global one; with λ = 1 neither resembles any other."""
    estimated = InnerProducts(np.array([[1.0, -300.0], [-300.0, 1.0]]), np.zeros(2), 100.0)
    np.testing.assert_allclose(weights_from(estimated, np.ones(2), lam=1.0, post=post), [0.5, 0.5])


def test_models_at_zero_have_no_direction() -> None:
    models = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(weights(models, np.ones(2)), textbook(models, np.ones(2)), atol=1e-9)


def test_own_last_model_is_remembered_per_client(advance) -> None:
    server = SimProx(prev="own_last")
    rng = np.random.default_rng(3)
    current = rng.normal(size=4).astype(np.float32)
    first = rng.normal(size=(3, 4)).astype(np.float32)
    second = rng.normal(size=(3, 4)).astype(np.float32)
    start = advance(server, current, first, clients=[0, 2, 5])
    np.testing.assert_allclose(start.weights, textbook(current + first, current), atol=1e-6)
    # Client 7 is new: its change is measured from the global model it received.
    later = start.parameters
    after = advance(server, later, second, clients=[2, 5, 7])
    sent_before = [(current + first)[1], (current + first)[2], later]
    np.testing.assert_allclose(after.weights, textbook(later + second, later, sent_before), atol=1e-6)


def test_sketch_gives_nearly_the_same_weights(advance) -> None:
    rng = np.random.default_rng(4)
    current = rng.normal(size=30_000).astype(np.float32)
    groups = rng.normal(size=(3, 30_000))
    movements = 0.004 * (groups[np.arange(40) % 3] + rng.normal(size=(40, 30_000)))
    exact = advance(SimProx(temperature=0.01), current, movements).weights
    previous = np.inf
    for dimension in (64, 1024, 16384):
        estimated = advance(SimProx(temperature=0.01, sketch=dimension), current, movements).weights
        error = np.abs(estimated / exact - 1).max()
        assert error < 2 / math.sqrt(dimension)
        assert error < previous
        previous = error


# --- on a buffer: answers to models of several versions -----------------------------------------------------


def buffered(rng, ages, size=6, scale=0.5) -> tuple[np.ndarray, np.ndarray, dict]:
    """A current model, movements, and columns for answers of these ages."""
    ages = np.array(ages)
    current = rng.normal(size=size).astype(np.float32)
    movements = (scale * rng.normal(size=(len(ages), size))).astype(np.float32)
    drifts = {20 - int(age): rng.normal(size=size).astype(np.float32) for age in set(ages.tolist()) if age}
    return current, movements, {"staleness": ages, "version": 20 - ages, "drifts": drifts}


def sent(current, movements, columns) -> tuple[np.ndarray, np.ndarray]:
    """The models that clients received, and those that they sent, in float64."""
    nothing = np.zeros(len(current))
    drifts = [columns["drifts"].get(version, nothing) for version in columns["version"].tolist()]
    received = current.astype(float) + np.array(drifts, dtype=float)
    return received, received + movements.astype(float)


def discounted(weights, ages, a=0.5) -> np.ndarray:
    raw = weights * (1.0 + np.array(ages)) ** -a
    return raw / raw.sum()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), ages=st.lists(st.integers(0, 5), min_size=1, max_size=7))
def test_on_a_buffer_similarities_are_of_the_models_that_clients_sent(advance, seed, ages) -> None:
    current, movements, columns = buffered(np.random.default_rng(seed), ages)
    received, models = sent(current, movements, columns)
    result = advance(SimProx(), current, movements, **columns)
    # A client's change is measured from what it received; the mean cosine from the current model.
    expected = discounted(textbook(models, current.astype(float), received), ages)
    np.testing.assert_allclose(result.weights, expected, atol=1e-6)
    np.testing.assert_allclose(result.parameters, current + result.weights @ movements, rtol=1e-4, atol=1e-5)


def test_worked_example_on_a_buffer(advance) -> None:
    """The models of the worked example; the third was sent three versions late, so half of its weight is left."""
    drift = np.array([0.25, -1.0], dtype=np.float32)
    movements = (MODELS - GLOBAL).astype(np.float32)
    movements[2] -= drift
    columns = {"staleness": np.array([0, 0, 3]), "version": np.array([9, 9, 6]), "drifts": {6: drift}}
    result = advance(SimProx(threshold=0.5), GLOBAL, movements, **columns)
    # Only the third client's change is another: ‖(1, 1) − (0.75, −0.5)‖ = √2.3125 instead of √0.5.
    raw = np.exp(-np.sqrt([0.5, 0.5, 2.3125])) * (1 + np.array([0.418757, 0.418757, 0.698898]))
    shares = np.exp(raw / raw.sum())
    np.testing.assert_allclose(result.weights, discounted(shares, [0, 0, 3]), atol=1e-6)


def test_fresh_answers_have_the_same_bits_with_and_without_drifts_in_sight(advance) -> None:
    rng = np.random.default_rng(8)
    current, movements, _ = buffered(rng, [0] * 5, size=300)
    plain = advance(SimProx(), current, movements)
    for options in ({"staleness": "constant"}, {"staleness": "hinge", "staleness_b": 0}):
        drifts = {"drifts": {3: np.ones(300, dtype=np.float32)}, "version": np.full(5, 20)}
        beside = advance(SimProx(**options), current, movements, **drifts)
        np.testing.assert_array_equal(beside.parameters, plain.parameters)
        np.testing.assert_array_equal(beside.weights, plain.weights)


def test_the_same_model_sent_from_different_versions_is_the_same_model(advance) -> None:
    """Nothing but age and the way they went tells them apart; with equal ways, only age."""
    rng = np.random.default_rng(9)
    current, goal = (rng.normal(size=50).astype(np.float32) for _ in range(2))
    away = rng.normal(size=50)
    turned = np.roll(away, 25)
    columns = {"staleness": np.array([2, 5]), "version": np.array([8, 5])}
    starts = [goal - away.astype(np.float32), goal - turned.astype(np.float32)]
    drifts = {8: starts[0] - current, 5: starts[1] - current}
    movements = np.array([goal - start for start in starts])
    result = advance(SimProx(staleness_a=1.0), current, movements, **columns, drifts=drifts)
    np.testing.assert_allclose(result.weights, [2 / 3, 1 / 3], rtol=1e-4)


def test_discounts_come_after_the_softmax(advance) -> None:
    """So that its bound on the ratio of weights does not bound what age does."""
    current, movements, columns = buffered(np.random.default_rng(10), [0, 0, 99])
    result = advance(SimProx(staleness_a=2.0), current, movements, **columns)
    assert result.weights[0] / result.weights[2] > 10_000 / math.e


def test_own_last_models_are_those_that_were_sent(advance) -> None:
    rng, server = np.random.default_rng(11), SimProx(prev="own_last")
    current, movements, columns = buffered(rng, [0, 2, 3])
    received, models = sent(current, movements, columns)
    first = advance(server, current, movements, **columns)
    np.testing.assert_allclose(
        first.weights, discounted(textbook(models, current.astype(float), received), [0, 2, 3]), atol=1e-6
    )
    later, again, more = buffered(rng, [1, 0, 4])
    _, next_models = sent(later, again, more)
    second = advance(server, later, again, **more)
    expected = discounted(textbook(next_models, later.astype(float), models), [1, 0, 4])
    np.testing.assert_allclose(second.weights, expected, atol=1e-6)


def test_running_statistics_have_no_say_on_a_buffer(layout, cohort) -> None:
    spec, rng = layout([6], buffers=2), np.random.default_rng(12)
    current, movements, columns = buffered(rng, [0, 2, 1, 2], size=8)
    wild = movements.copy()
    wild[:, 6:] *= np.float32(1e4)
    further = {version: drift * np.float32([1] * 6 + [1e4] * 2) for version, drift in columns["drifts"].items()}
    usual = SimProx().aggregate(current, cohort(movements, **columns), spec)
    other = SimProx().aggregate(current, cohort(wild, **columns | {"drifts": further}), spec)
    np.testing.assert_array_equal(usual.weights, other.weights)
    np.testing.assert_array_equal(usual.parameters[:6], other.parameters[:6])


def test_a_sketch_gives_nearly_the_same_weights_on_a_buffer(advance) -> None:
    rng = np.random.default_rng(13)
    current, movements, columns = buffered(rng, [0, 1, 2, 2, 0, 1] * 3, size=20_000, scale=0.005)
    columns["drifts"] = {version: 0.01 * drift for version, drift in columns["drifts"].items()}
    exact = advance(SimProx(temperature=0.05), current, movements, **columns).weights
    estimated = advance(SimProx(temperature=0.05, sketch=4096), current, movements, **columns).weights
    np.testing.assert_allclose(estimated, exact, rtol=0.05)


def test_one_optimum_is_reached_whoever_answers_how_often(agreed) -> None:
    result = agreed.run(SimProx(), 400, pacing=Buffered(in_flight=3, k=2))
    np.testing.assert_allclose(result.parameters, [3.0, -2.0], atol=1e-3)
    assert max(agreed.arrivals(result)[1]) > 2


def test_where_clients_differ_it_ends_where_its_weights_balance(asynchronous) -> None:
    """At the optimum of those who answer often, as FedBuff: similarity does not know how often somebody does."""
    result = asynchronous.run(SimProx(), 800, pacing=Buffered(in_flight=3, k=2))
    given = np.zeros(3)
    for record in result.records[200:]:
        given[record.trainings[0].clients] += record.trainings[0].weights
    balance, fair = asynchronous.weighted_optimum(given), asynchronous.problem.optimum
    assert np.linalg.norm(balance - fair) > 0.5
    assert np.linalg.norm(asynchronous.centre - balance) < 0.1


@pytest.mark.parametrize(
    "option", [{"lam": 1.1}, {"threshold": 0.0}, {"temperature": 0.0}, {"sketch": 0}, {"memory_limit_mb": -1}]
)
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        SimProx(**option).check(population())
