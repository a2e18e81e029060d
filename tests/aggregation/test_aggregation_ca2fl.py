"""CA²FL."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation.ca2fl import CA2FL
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedbuff import FedBuff
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.pacing.buffered import Buffered


@pytest.fixture
def server(layout):
    """`server(N)`: prepared for a federation of N clients."""

    def make(clients: int, **options) -> CA2FL:
        made = CA2FL(**options)
        made.prepare(Population(np.ones(clients, dtype=np.int64), 2, layout([1]), 10))
        return made

    return make


def test_worked_example(server, layout, cohort) -> None:
    """Four clients, buffers of two.

    Step 1: Δ_0 = 2, Δ_1 = 4, nothing remembered: v = 3. Step 2: h̄ = 6/4 = 1.5; Δ_0 = 1 and Δ_2 = −1: v = 1.5 +
    half of (1 − 2) + (−1 − 0), 0.5. Step 3: h = (1, 4, −1, 0), h̄ = 1; Δ_1 = 0: v = 1 − 4 = −3.
    """
    made, spec, now = server(4), layout([1]), np.zeros(1, dtype=np.float32)
    reached = []
    for clients, movements in (([0, 1], [[2.0], [4.0]]), ([0, 2], [[1.0], [-1.0]]), ([1], [[0.0]])):
        now = made.aggregate(now, cohort(movements, clients=clients), spec).parameters
        reached.append(now[0])
    np.testing.assert_allclose(reached, [3.0, 3.5, 0.5])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), rounds=st.integers(1, 12), rate=st.sampled_from([0.5, 1.0]))
def test_equals_the_textbook_with_a_row_for_every_client(server, layout, cohort, *, seed, rounds, rate) -> None:
    rng, clients, size = np.random.default_rng(seed), 7, 3
    made, spec = server(clients, server_lr=rate), layout([size])
    now, exact, kept = np.zeros(size, dtype=np.float32), np.zeros(size), np.zeros((clients, size))
    for _ in range(rounds):
        who = rng.choice(clients, size=rng.integers(1, 5), replace=False)
        movements = rng.normal(size=(len(who), size)).astype(np.float32)
        exact = exact + rate * (kept.mean(axis=0) + (movements - kept[who]).mean(axis=0))
        kept[who] = movements
        result = made.aggregate(now, cohort(movements, clients=who), spec)
        now = result.parameters
        np.testing.assert_allclose(now, exact, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.weights, 1 / len(who))


def test_when_everybody_answers_it_is_fedavg(server, layout, cohort) -> None:
    made, spec, rng = server(5), layout([20]), np.random.default_rng(1)
    now = np.zeros(20, dtype=np.float32)
    for _ in range(4):
        updates = cohort(rng.normal(size=(5, 20)))
        expected = FedAvg(weights="equal").aggregate(now, updates, spec).parameters
        now = made.aggregate(now, updates, spec).parameters
        np.testing.assert_allclose(now, expected, rtol=1e-5, atol=1e-6)


def test_only_clients_that_took_part_cost_memory_and_statistics_are_not_remembered(server, layout, cohort) -> None:
    spec, made = layout([10], buffers=4, counters=1), server(1_000_000)
    made.aggregate(np.zeros(15, dtype=np.float32), cohort(np.ones((3, 15)), clients=[5, 70, 999_999]), spec)
    kept = made.state_dict()["last_updates"]["last_update"]
    assert kept["clients"].tolist() == [5, 70, 999_999]
    assert kept["vectors"].shape == (3, 10)


def test_running_statistics_are_averaged_and_counters_copied(server, layout, cohort) -> None:
    spec, made = layout([1], buffers=1, counters=1), server(4)
    now = np.zeros(3, dtype=np.float32)
    for movements in ([[1.0, 2.0, 7.0], [1.0, 4.0, 9.0]], [[1.0, 2.0, 8.0], [3.0, 6.0, 9.0]]):
        result = made.aggregate(now, cohort(movements), spec)
    # h̄ = 2/4 comes on top of the parameters' step (mean 2, mean of h 1), but not of the statistics'.
    np.testing.assert_allclose(result.parameters, [0.5 + 1.0, 4.0, 8.0])


def test_updates_beyond_the_memory_limit_go_to_disk_with_the_same_bits(server, layout, cohort) -> None:
    spec, rng = layout([100]), np.random.default_rng(2)
    here, there = server(10), server(10, memory_limit_mb=0)
    now = np.zeros(100, dtype=np.float32)
    for _ in range(5):
        updates = cohort(rng.normal(size=(4, 100)), clients=rng.choice(10, 4, replace=False))
        results = [made.aggregate(now, updates, spec).parameters for made in (here, there)]
        np.testing.assert_array_equal(*results)
        now = results[0]


def test_it_reaches_the_optimum_that_fedbuff_misses(asynchronous) -> None:
    """One client answers ten times as often as another: the mean of all clients' last updates does not care."""
    fair = asynchronous.problem.optimum
    reached = asynchronous.run(CA2FL(), 800).parameters
    np.testing.assert_allclose(reached, fair, atol=1e-3)
    missed = asynchronous.run(FedBuff(), 800).parameters
    assert np.linalg.norm(missed - fair) > 1.0


def test_with_a_buffer_too(asynchronous) -> None:
    reached = asynchronous.run(CA2FL(), 600, pacing=Buffered(in_flight=3, k=2)).parameters
    np.testing.assert_allclose(reached, asynchronous.problem.optimum, atol=1e-3)


def test_a_negative_limit_is_refused(population) -> None:
    with pytest.raises(ConfigError, match="memory_limit_mb"):
        CA2FL(memory_limit_mb=-1).check(population())
