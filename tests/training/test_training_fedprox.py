"""FedProx: the worked example, the form as a term of the loss, and its limits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel, spec_of
from muster.core.randomness import generator
from muster.models import build_model
from muster.training.base import LocalAlgorithm, LocalRun, LocalTraining, Plain, algorithms, train
from muster.training.context import ClientContext
from muster.training.fedprox import FedProx


class ProximalLoss(LocalAlgorithm):
    """The paper's form: the term is part of the loss, and autograd does the rest."""

    def __init__(self, mu):
        self.mu = mu

    def loss(self, job, features, logits, loss):
        distance = sum(((p - o) ** 2).sum() for p, o in zip(job.parameters, job.origin, strict=True))
        return loss + self.mu / 2 * distance


def client(training, module=None, seed=0):
    data = np.random.default_rng(seed)
    flat = FlatModel(module if module is not None else build_model("mlp", (6,), 3, {"hidden": [5]}))
    return ClientContext(
        client=0,
        features=torch.from_numpy(data.standard_normal((20, 6)).astype(np.float32)),
        labels=torch.from_numpy(data.integers(0, 3, 20)),
        classes=3,
        model=flat,
        origin=torch.from_numpy(flat.vector()),
        rng=generator(seed, "train"),
        training=training,
        training_rng=lambda: generator(seed, "train"),
        lr=training.lr,
    )


def test_worked_example():
    # w_global = 0, w = 2, gradient −1, μ = 0.1, learning rate 0.5: w ← 2 − 0.5 · (−1 + 0.1 · 2) = 2.4
    training = LocalTraining(lr=0.5)
    module = nn.Linear(1, 1, bias=False)
    context = client(training, module)
    context.origin = torch.zeros(1)
    with torch.no_grad():
        context.model.module.weight.fill_(2.0)
    parameters = list(context.model.module.parameters())
    optimizer = training.make_optimizer(parameters, 0.5)
    job = LocalRun(context, parameters, 0.5, optimizer)
    parameters[0].grad = torch.tensor([[-1.0]])
    FedProx(mu=0.1).correct(job)
    assert parameters[0].grad.item() == pytest.approx(-0.8)
    optimizer.step()
    assert parameters[0].item() == pytest.approx(2.4)


@settings(max_examples=10, deadline=None)
@given(st.floats(0, 2), st.integers(0, 1000))
def test_equals_the_term_in_the_loss(mu, seed):
    training = LocalTraining(lr=0.2, momentum=0.5, batch_size=6, epochs=3)
    direct, through_loss = client(training, seed=seed), client(training, seed=seed)
    train(direct, FedProx(mu=mu), 0.2)
    train(through_loss, ProximalLoss(mu), 0.2)
    np.testing.assert_allclose(direct.model.vector(), through_loss.model.vector(), rtol=1e-4, atol=1e-5)
    # The reported loss is that of the data, without the term.
    assert direct.outcome.mean_loss == pytest.approx(through_loss.outcome.mean_loss, rel=1e-4)


def test_equals_the_term_in_the_loss_for_convolutions_in_channels_last():
    training = LocalTraining(lr=0.1, batch_size=5, epochs=2)
    results = []
    for algorithm in (FedProx(mu=0.5), ProximalLoss(0.5)):
        context = client(training, build_model("group-norm-cnn", (3, 8, 8), 3))
        features = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        context.features = features.contiguous(memory_format=torch.channels_last)
        train(context, algorithm, 0.1)
        results.append(context.model.vector())
    corrected, through_loss = results
    np.testing.assert_allclose(corrected, through_loss, rtol=1e-4, atol=1e-5)


def test_first_step_and_mu_zero_are_plain_training():
    one = LocalTraining(lr=0.1, steps=1)
    near, plain = client(one), client(one)
    train(near, FedProx(mu=10.0), 0.1)
    train(plain, Plain(), 0.1)
    np.testing.assert_array_equal(near.model.vector(), plain.model.vector())
    more = LocalTraining(lr=0.1, batch_size=4, epochs=2)
    zero, plain = client(more), client(more)
    train(zero, FedProx(mu=0.0), 0.1)
    train(plain, Plain(), 0.1)
    np.testing.assert_array_equal(zero.model.vector(), plain.model.vector())


def test_larger_mu_stays_nearer():
    training = LocalTraining(lr=0.1, batch_size=4, epochs=10)
    distances = []
    for mu in (0.0, 0.5, 5.0):
        context = client(training)
        train(context, FedProx(mu=mu), 0.1)
        distances.append(np.linalg.norm(context.model.vector() - context.origin.numpy()))
    assert distances[0] > distances[1] > distances[2]


def test_registered_and_checked():
    population = Population(np.array([5]), 3, spec_of(nn.Linear(2, 3)), 10)
    algorithm = algorithms.build("fedprox", {"mu": 0.3})
    assert algorithm == FedProx(mu=0.3)
    algorithm.check(population)
    for mu in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="mu"):
            FedProx(mu=mu).check(population)
