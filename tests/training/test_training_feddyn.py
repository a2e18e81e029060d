"""FedDyn on clients, and the whole of it on a convex federation."""

import numpy as np
import pytest
import torch

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.feddyn import FedDyn as Server
from muster.core.errors import ConfigError
from muster.training.base import Plain
from muster.training.feddyn import GRADIENT, FedDyn


def test_steps_equal_those_by_hand(convex) -> None:
    rng = np.random.default_rng(0)
    origin, own = rng.normal(size=(2, convex.spec.size)).astype(np.float32)
    convex.states[0][GRADIENT] = own.copy()
    _, movement = convex.train(0, origin, FedDyn(alpha=0.3), None)
    w, training = origin.astype(float), convex.training
    for _ in range(training.steps):
        gradient = convex.gradient(0, w) + training.weight_decay * w - own + 0.3 * (w - origin)
        w -= training.lr * gradient
    np.testing.assert_allclose(origin + movement, w, atol=1e-5)
    np.testing.assert_allclose(convex.states[0][GRADIENT], own - 0.3 * movement, atol=1e-5)


def test_gradient_is_the_one_at_the_minimiser(convex) -> None:
    """After exact local optimisation, g_k is the gradient of the client's loss at the model that it sends."""
    convex.training = convex.training.__class__(lr=0.5, steps=400, batch_size=12)
    origin = np.zeros(convex.spec.size, dtype=np.float32)
    _, movement = convex.train(0, origin, FedDyn(alpha=0.5))
    np.testing.assert_allclose(convex.states[0][GRADIENT], convex.gradient(0, origin + movement), atol=1e-4)


def test_reaches_the_optimum_where_fedavg_stalls(convex) -> None:
    stalled = convex.run(Plain(), FedAvg(), 60)
    reached = convex.run(FedDyn(alpha=0.3), Server(), 90)
    assert convex.slope(stalled) > 0.02
    assert convex.slope(reached) < 1e-3


def test_a_training_that_diverged_is_forgotten(convex) -> None:
    convex.features[0, 0] = torch.inf
    convex.train(0, np.zeros(convex.spec.size, dtype=np.float32), FedDyn())
    assert GRADIENT not in convex.states[0]


def test_impossible_alpha_is_refused(convex) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        FedDyn(alpha=0.0).check(convex.population())
