"""SCAFFOLD on clients, and the whole of it on a convex federation."""

import numpy as np
import pytest
import torch
from torch import nn

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.scaffold import Scaffold as Server
from muster.errors import ConfigError
from muster.parameters import FlatModel
from muster.training.base import LocalTraining, Plain
from muster.training.gradient import local_gradient
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


def by_iteration(gradients, momentum, nesterov):
    """Where PyTorch's SGD with a rate of 1 arrives on these gradients, from zero: the slow form."""
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum, nesterov=nesterov)
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    return -float(parameter.detach())


@pytest.mark.parametrize("nesterov", [False, True])
def test_option_two_is_the_mean_of_the_gradients_as_the_optimiser_weighs_them(convex, nesterov) -> None:
    convex.training = LocalTraining(lr=0.1, steps=6, batch_size=4, momentum=0.9, nesterov=nesterov)
    rng = np.random.default_rng(2)
    origin, own, common = rng.normal(size=(3, convex.spec.size)).astype(np.float32)
    convex.states[0][CONTROL] = own.copy()
    gradients = []

    class Watched(Scaffold):
        def correct(self, job):
            gradients.append(torch.cat([p.grad.flatten() for p in job.parameters]).double().numpy())
            super().correct(job)

    job, _ = convex.train(0, origin, Watched(), common)
    weights = [by_iteration(np.eye(6)[step], 0.9, nesterov) for step in range(6)]
    expected = np.average(gradients, axis=0, weights=weights)
    np.testing.assert_allclose(convex.states[0][CONTROL], expected, atol=1e-5)
    np.testing.assert_allclose(job.extra[CONTROL_CHANGE], expected - own, atol=1e-5)


@pytest.mark.parametrize("batch_size", [12, 5])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"weight_decay": 0.1}])
def test_option_one_is_the_gradient_at_the_received_model_under_any_optimiser(convex, options, batch_size) -> None:
    convex.training = LocalTraining(lr=0.1, steps=5, batch_size=batch_size, **options)
    rng = np.random.default_rng(3)
    origin, own, common = rng.normal(size=(3, convex.spec.size)).astype(np.float32)
    convex.states[0][CONTROL] = own.copy()
    job, _ = convex.train(0, origin, Scaffold(option="I"), common)
    expected = convex.gradient(0, origin)
    np.testing.assert_allclose(convex.states[0][CONTROL], expected, atol=1e-6)
    np.testing.assert_allclose(job.extra[CONTROL_CHANGE], expected - own, atol=1e-6)


def test_option_one_trains_like_option_two_from_the_same_variates(convex) -> None:
    rng = np.random.default_rng(4)
    origin, common = rng.normal(size=(2, convex.spec.size)).astype(np.float32)
    movements = []
    for option in ("I", "II"):
        convex.states[0].clear()
        movements.append(convex.train(0, origin, Scaffold(option=option), common)[1])
    np.testing.assert_array_equal(*movements)


def test_the_pass_of_option_one_leaves_statistics_and_random_numbers_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    model = FlatModel(module)
    features, labels = torch.randn(10, 3), torch.arange(10) % 3
    before, random = model.vector(), torch.get_rng_state()
    first = local_gradient(model, features, labels, 5)
    np.testing.assert_array_equal(model.vector(), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in module.parameters())
    # The slow form: mean of the batches' gradients in training mode, with the same draws.
    module.train()
    loss = sum(nn.functional.cross_entropy(module(features[k : k + 5]), labels[k : k + 5]) for k in (0, 5)) / 2
    loss.backward()
    slow = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    np.testing.assert_allclose(first[: len(slow)], slow, atol=1e-6)
    assert not first[len(slow) :].any()


def test_a_parameter_without_effect_keeps_up_with_the_others(convex) -> None:
    """Its gradient is zero, not missing: the correction moves it, and its variate says zero."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 3), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.used(x)

    convex.training = LocalTraining(lr=0.5, steps=4, batch_size=12)
    convex.model = FlatModel(Idle())
    convex.spec = convex.model.spec
    entry = convex.spec.entry("idle")
    origin = np.zeros(convex.spec.size, dtype=np.float32)
    common = np.full(convex.spec.size, 0.25, dtype=np.float32)
    _, movement = convex.train(0, origin, Scaffold(), common)
    np.testing.assert_allclose(movement[entry.slice], -0.25 * 0.5 * 4)
    np.testing.assert_allclose(convex.states[0][CONTROL][entry.slice], 0, atol=1e-7)


def test_an_optimiser_without_such_a_norm_is_refused(convex) -> None:
    adam = LocalTraining(lr=0.1, optimizer="adam")
    with pytest.raises(ConfigError, match="option II"):
        Scaffold().check_training(adam)
    Scaffold(option="I").check_training(adam)
    Scaffold().check_training(LocalTraining(lr=0.1, momentum=0.9, nesterov=True))


def test_an_unknown_option_is_refused(convex) -> None:
    with pytest.raises(ConfigError, match="'I' or 'II'"):
        Scaffold(option="III").check(convex.population())


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
