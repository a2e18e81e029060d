"""SCAFFOLD on clients, and the whole of it on a convex federation."""

import numpy as np
import pytest
import torch

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.scaffold import Scaffold as Server
from muster.errors import ConfigError
from muster.training.base import LocalTraining, Plain
from muster.training.scaffold import CONTROL, CONTROL_CHANGE, Scaffold


def by_hand(convex, client, origin, own, common):
    """Local steps with corrected gradients, in float64."""
    w, training = origin.astype(float), convex.training
    for _ in range(training.steps):
        gradient = convex.gradient(client, w) + training.weight_decay * w
        w = w - training.lr * (gradient - own + common)
    return w


def test_steps_equal_those_by_hand(convex) -> None:
    rng = np.random.default_rng(0)
    origin, own, common = rng.normal(size=(3, convex.spec.size)).astype(np.float32)
    convex.states[0][CONTROL] = own
    _, movement = convex.train(0, origin, Scaffold(), common)
    np.testing.assert_allclose(origin + movement, by_hand(convex, 0, origin, own, common), atol=1e-5)


def test_new_variate_is_the_papers_second_option(convex) -> None:
    convex.training = LocalTraining(lr=0.3, steps=5, batch_size=4)
    rng = np.random.default_rng(1)
    origin, own, common = rng.normal(size=(3, convex.spec.size)).astype(np.float32)
    convex.states[1][CONTROL] = own.copy()
    job, movement = convex.train(1, origin, Scaffold(), common)
    expected = own - common - movement / (5 * 0.3)
    np.testing.assert_allclose(convex.states[1][CONTROL], expected, atol=1e-5)
    np.testing.assert_allclose(job.extra[CONTROL_CHANGE], expected - own, atol=1e-5)


def test_first_training_starts_from_a_variate_of_zero(convex) -> None:
    origin = np.zeros(convex.spec.size, dtype=np.float32)
    job, movement = convex.train(0, origin, Scaffold(), origin)
    np.testing.assert_allclose(job.extra[CONTROL_CHANGE], convex.states[0][CONTROL])
    plain_job, plain = convex.train(0, origin, Plain())
    np.testing.assert_array_equal(movement, plain)
    assert plain_job.extra == {}


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_variate_is_a_mean_gradient_under_any_optimiser(convex, options) -> None:
    convex.training = LocalTraining(lr=1e-6, steps=5, batch_size=12, **options)
    origin = np.zeros(convex.spec.size, dtype=np.float32)
    convex.train(0, origin, Scaffold(), origin)
    np.testing.assert_allclose(convex.states[0][CONTROL], convex.gradient(0, origin), atol=1e-4)


def test_reaches_the_optimum_where_fedavg_stalls(convex) -> None:
    stalled = convex.run(Plain(), FedAvg(), 60)
    reached = convex.run(Scaffold(), Server(), 60)
    assert convex.slope(stalled) > 0.02
    assert convex.slope(reached) < 1e-4


def test_a_training_that_diverged_is_forgotten(convex) -> None:
    origin = np.zeros(convex.spec.size, dtype=np.float32)
    convex.features[0, 0] = torch.inf
    job, _ = convex.train(0, origin, Scaffold(), origin)
    assert CONTROL not in convex.states[0]
    np.testing.assert_array_equal(job.extra[CONTROL_CHANGE], 0)


def test_a_server_without_variates_is_an_error(convex) -> None:
    with pytest.raises(ConfigError, match="aggregation"):
        convex.train(0, np.zeros(convex.spec.size, dtype=np.float32), Scaffold())
