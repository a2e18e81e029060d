"""FedAsync."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation.fedasync import FedAsync
from muster.aggregation.fedavg import FedAvg
from muster.core.errors import ConfigError


def test_worked_example(advance) -> None:
    """w = 4, an old model 1 from which the client came to 3: α s = 0.6 · 0.5, so 0.7 · 4 + 0.3 · 3 = 3.7."""
    drifts = {2: np.array([-3.0], dtype=np.float32)}
    old = {"staleness": np.array([3]), "version": np.array([2]), "drifts": drifts}
    np.testing.assert_allclose(advance(FedAsync(), [4.0], [[2.0]], **old).parameters, [3.7], rtol=1e-6)
    constant = advance(FedAsync(staleness="constant"), [4.0], [[2.0]], **old)
    np.testing.assert_allclose(constant.parameters, [0.4 * 4 + 0.6 * 3], rtol=1e-6)
    hinged = advance(FedAsync(staleness="hinge", staleness_a=2.0, staleness_b=1), [4.0], [[2.0]], **old)
    np.testing.assert_allclose(hinged.parameters, [4 - 0.6 / 5], rtol=1e-6)


def test_several_at_once_are_mixed_in_as_their_mean(advance) -> None:
    """Models 3 (fresh) and 3 (three versions old): the mean of their pulls, 0.6 · (−1) and 0.3 · (−1)."""
    drifts = {2: np.array([-3.0], dtype=np.float32)}
    options = {"staleness": np.array([0, 3]), "version": np.array([5, 2]), "drifts": drifts}
    result = advance(FedAsync(), [4.0], [[-1.0], [2.0]], **options)
    np.testing.assert_allclose(result.parameters, [4 - 0.45], rtol=1e-6)
    np.testing.assert_allclose(result.weights, [2 / 3, 1 / 3])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), ages=st.lists(st.integers(0, 12), min_size=1, max_size=30))
def test_one_by_one_it_equals_the_papers_mixing_of_models(layout, cohort, seed, ages) -> None:
    """A server that keeps every model it ever had and mixes in what clients made of them."""
    rng, server, spec = np.random.default_rng(seed), FedAsync(server_lr=0.5, staleness_a=0.7), layout([4])
    models = [rng.normal(size=4).astype(np.float32)]
    exact = models[0].astype(float)
    for wanted in ages:
        now = len(models) - 1
        age = min(wanted, now)
        movement = rng.normal(size=(1, 4)).astype(np.float32)
        drifts = {now - age: models[now - age] - models[now]} if age else {}
        updates = cohort(movement, staleness=np.array([age]), version=np.array([now - age]), drifts=drifts)
        share = 0.5 * (1 + age) ** -0.7
        exact = (1 - share) * exact + share * (models[now - age].astype(float) + movement[0])
        models.append(server.aggregate(models[now], updates, spec).parameters)
        np.testing.assert_allclose(models[-1], exact, rtol=1e-4, atol=1e-4)


def test_a_stream_and_a_matrix_give_the_same_bits_with_drifts(layout, cohort) -> None:
    spec, rng = layout([40_000], buffers=10, counters=1), np.random.default_rng(3)
    current = rng.normal(size=spec.size).astype(np.float32)
    drifts = {v: rng.normal(size=spec.size).astype(np.float32) for v in (1, 4)}
    ages = {"staleness": np.array([0, 5, 2, 5]), "version": np.array([6, 1, 4, 1]), "drifts": drifts}
    updates = cohort(rng.normal(size=(4, spec.size)), sizes=[3, 1, 2, 5], **ages)
    whole, streamed = (FedAsync(weights="samples") for _ in range(2))
    expected = whole.aggregate(current, updates, spec)
    streamed.begin(current, spec)
    for row in updates:
        streamed.add(row)
    got = streamed.finish()
    np.testing.assert_array_equal(got.parameters, expected.parameters)
    np.testing.assert_array_equal(got.weights, expected.weights)


def test_fresh_answers_and_alpha_one_are_fedavg(layout, cohort) -> None:
    spec, rng = layout([30], buffers=2), np.random.default_rng(4)
    current, updates = rng.normal(size=spec.size).astype(np.float32), cohort(rng.normal(size=(5, spec.size)))
    got = FedAsync(server_lr=1.0).aggregate(current, updates, spec)
    np.testing.assert_array_equal(
        got.parameters, FedAvg(weights="equal").aggregate(current, updates, spec).parameters
    )


def test_one_optimum_is_reached_whoever_answers_how_often(agreed) -> None:
    result = agreed.run(FedAsync(), 600)
    np.testing.assert_allclose(result.parameters, [3.0, -2.0], atol=1e-3)
    assert max(agreed.arrivals(result)[1]) > 5


def test_where_clients_differ_it_stays_with_those_who_answer_often(asynchronous) -> None:
    """As FedBuff: mixing models instead of adding movements does not remove the bias of frequent answers."""
    result = asynchronous.run(FedAsync(server_lr=0.5), 1500)
    who, ages = asynchronous.arrivals(result)
    counts = np.bincount(who[500:], weights=1 / np.sqrt(1 + ages[500:]), minlength=3)
    biased, fair = asynchronous.weighted_optimum(counts), asynchronous.problem.optimum
    assert np.linalg.norm(asynchronous.centre - fair) > 3.0
    assert np.linalg.norm(asynchronous.centre - biased) < 0.1


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_share_outside_its_range_is_refused(population, alpha) -> None:
    with pytest.raises(ConfigError, match="server_lr"):
        FedAsync(server_lr=alpha).check(population())
