"""SCAFFOLD on the server."""

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.scaffold import Scaffold
from muster.core.component import Population
from muster.core.errors import ConfigError


def test_control_variate_is_the_mean_over_all_clients(layout, cohort) -> None:
    server, spec = Scaffold(), layout([2], buffers=1)
    server.prepare(Population(np.ones(4, dtype=np.int64), 2, spec, 10))
    np.testing.assert_array_equal(server.broadcast(spec), [0, 0, 0])
    changes = np.array([[1, 2, 9], [3, 4, 9]], dtype=np.float32)
    updates = cohort([[1, 1, 1], [3, 3, 3]], sizes=[1, 99], extra={"control_change": changes})
    result = server.aggregate(np.zeros(3, dtype=np.float32), updates, spec)
    np.testing.assert_allclose(result.parameters, [2, 2, 2])
    np.testing.assert_allclose(server.broadcast(spec), [1, 1.5, 0])
    server.aggregate(result.parameters, updates, spec)
    np.testing.assert_allclose(server.broadcast(spec), [2, 3, 0])


def test_reaches_the_optimum_where_fedavg_stalls(quadratic, layout, cohort, population) -> None:
    """Many local steps: FedAvg's fixed point is biased towards curved clients, SCAFFOLD's is the optimum."""
    steps, lr, clients = 10, quadratic.lr, range(3)
    server, spec = Scaffold(), layout([2])
    server.prepare(population(3))
    current, controls = np.zeros(2, dtype=np.float32), np.zeros((3, 2))
    for _ in range(150):
        common = server.broadcast(spec).astype(float)
        models = np.repeat(current[None].astype(float), 3, axis=0)
        for _ in range(steps):
            gradients = quadratic.curvatures[:, None] * (models - quadratic.centres)
            models -= lr * (gradients - controls + common)
        fresh = controls - common + (current - models) / (steps * lr)
        movements, changes = models - current, fresh - controls
        controls = fresh
        updates = cohort(movements, extra={"control_change": changes.astype(np.float32)})
        current = server.aggregate(current, updates, spec).parameters
    stalled = quadratic.run(FedAvg(weights="equal"), 300, [steps for _ in clients])
    assert np.linalg.norm(stalled - quadratic.optimum) > 0.5
    np.testing.assert_allclose(current, quadratic.optimum, atol=1e-4)


def test_clients_that_join_count_among_all(layout, cohort, population) -> None:
    """The mean is over the clients there are now; who has never taken part counts as zero."""
    server, spec = Scaffold(), layout([2])
    server.prepare(population(2))
    changes = np.array([[1, 2], [3, 4]], dtype=np.float32)
    server.aggregate(
        np.zeros(2, dtype=np.float32), cohort(np.zeros((2, 2)), extra={"control_change": changes}), spec
    )
    np.testing.assert_allclose(server.broadcast(spec), [2, 3])
    server.prepare(population(8))
    np.testing.assert_allclose(server.broadcast(spec), [0.5, 0.75])
    newcomer = cohort([[0, 0]], clients=[7], extra={"control_change": np.array([[4, 10]], dtype=np.float32)})
    server.aggregate(np.zeros(2, dtype=np.float32), newcomer, spec)
    np.testing.assert_allclose(server.broadcast(spec), [1, 2])


def test_a_restored_server_knows_over_how_many_clients_its_mean_is(layout, cohort, population) -> None:
    server, spec = Scaffold(), layout([2])
    server.prepare(population(2))
    changes = np.array([[1, 2], [3, 4]], dtype=np.float32)
    server.aggregate(
        np.zeros(2, dtype=np.float32), cohort(np.zeros((2, 2)), extra={"control_change": changes}), spec
    )
    restored = Scaffold()
    restored.prepare(population(4))  # more are there when the run continues
    restored.load_state_dict(server.state_dict())
    restored.prepare(population(4))
    np.testing.assert_allclose(restored.broadcast(spec), [1, 1.5])
    before_it_was_kept = Scaffold()
    before_it_was_kept.prepare(population(2))
    before_it_was_kept.load_state_dict({"control": server.control})
    before_it_was_kept.prepare(population(2))
    np.testing.assert_allclose(before_it_was_kept.broadcast(spec), [2, 3])


def test_plain_clients_are_told_apart(advance) -> None:
    with pytest.raises(ConfigError, match="sent no control variate"):
        advance(Scaffold(), [0.0], [[1.0]], extra={})
