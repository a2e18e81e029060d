"""FedDyn on the server."""

import numpy as np

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.feddyn import FedDyn
from muster.core.component import Population


def test_equals_the_papers_state_over_alpha(layout, cohort) -> None:
    """h ← h − α/m ΣΔ, then the mean model minus h/α, for any α."""
    spec, alpha, rng = layout([3]), 0.37, np.random.default_rng(0)
    server = FedDyn()
    server.prepare(Population(np.ones(10, dtype=np.int64), 2, spec, 10))
    current, h = np.zeros(3, dtype=np.float32), np.zeros(3)
    for _ in range(4):
        movements = rng.normal(size=(4, 3)).astype(np.float32)
        h -= alpha / 10 * movements.sum(axis=0)
        expected = current + movements.mean(axis=0) - h / alpha
        current = server.aggregate(current, cohort(movements, sizes=[1, 2, 3, 4]), spec).parameters
        np.testing.assert_allclose(current, expected, rtol=1e-5, atol=1e-6)


def test_reaches_the_optimum_where_fedavg_stalls(quadratic, layout, cohort, population) -> None:
    alpha, spec = 1.0, layout([2])
    server = FedDyn()
    server.prepare(population(3))
    current, gradients = np.zeros(2, dtype=np.float32), np.zeros((3, 2))
    curved = quadratic.curvatures[:, None]
    for _ in range(200):
        # The exact minimiser of ½h‖w − b‖² − ⟨g, w⟩ + α/2‖w − w_global‖².
        models = (curved * quadratic.centres + gradients + alpha * current) / (curved + alpha)
        movements = models - current
        gradients -= alpha * movements
        current = server.aggregate(current, cohort(movements), spec).parameters
    stalled = quadratic.run(FedAvg(weights="equal"), 300, [10, 10, 10])
    assert np.linalg.norm(stalled - quadratic.optimum) > 0.5
    np.testing.assert_allclose(current, quadratic.optimum, atol=1e-4)


def test_clients_that_join_count_among_all(layout, cohort, population) -> None:
    """The paper's h is a mean over all clients: over as many as there are now."""
    spec, rng, server = layout([3]), np.random.default_rng(0), FedDyn()
    current, total = np.zeros(3, dtype=np.float32), np.zeros(3)
    for clients in (4, 4, 10, 10):
        server.prepare(population(clients))
        movements = rng.normal(size=(4, 3)).astype(np.float32)
        total += movements.sum(axis=0)
        expected = current + movements.mean(axis=0) + total / clients
        current = server.aggregate(current, cohort(movements), spec).parameters
        np.testing.assert_allclose(current, expected, rtol=1e-5, atol=1e-6)
