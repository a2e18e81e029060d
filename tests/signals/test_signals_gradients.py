"""Gradients as signals."""

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.signals.gradients import Gradient, MeanGradient
from muster.training.context import TrainOutcome


def test_gradient_is_that_of_the_mean_loss_in_evaluation_mode(make_client):
    client = make_client(size=1100)
    measured = Gradient().measure(client)
    module = client.model.module
    module.eval()
    nn.functional.cross_entropy(module(client.features), client.labels).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()]).numpy()
    np.testing.assert_allclose(measured, expected, atol=1e-6)
    assert measured.dtype == np.float64


def test_gradient_leaves_the_model_as_it_was(make_client):
    client = make_client()
    before = client.model.vector()
    Gradient().measure(client)
    assert np.array_equal(client.model.vector(), before)
    assert all(parameter.grad is None for parameter in client.model.module.parameters())


def test_parameters_that_do_not_train_have_a_zero_gradient(make_client):
    client = make_client()
    client.model.module.body.weight.requires_grad_(False)
    entry = client.spec.entry("body.weight")
    assert not Gradient().measure(client)[entry.slice].any()


@pytest.mark.parametrize("signal", [Gradient, MeanGradient])
def test_the_classification_layer_alone(make_client, signal):
    client = make_client()
    client.movement = np.arange(client.spec.size, dtype=np.float32)
    client.outcome = TrainOutcome(steps=2)
    population = Population(np.array([30]), 3, client.spec, 5)
    whole, part = signal(), signal(part="final_layer")
    final = client.spec.final_layer
    np.testing.assert_allclose(part.measure(client), whole.measure(client)[final], atol=1e-7)
    assert whole.width(population) == len(whole.measure(client)) == client.spec.trainable.stop
    assert part.width(population) == len(part.measure(client)) == 18


def test_mean_gradient_undoes_plain_gradient_descent(make_client):
    client = make_client()
    steps = np.random.default_rng(0).normal(size=(4, client.spec.size))
    client.movement = (-client.lr * steps.sum(axis=0)).astype(np.float32)
    client.outcome = TrainOutcome(steps=4)
    expected = steps.mean(axis=0)[client.spec.trainable]
    np.testing.assert_allclose(MeanGradient().measure(client), expected, atol=1e-5)


@pytest.mark.parametrize("selection", ["fedpns", "divfl"])
@pytest.mark.parametrize("kind", ["inline", "vectorised"])
def test_without_a_rate_there_is_no_gradient_and_clients_are_not_refused(tiny, selection, kind):
    """The last round of a schedule that ends with zero."""
    experiment = tiny(
        rounds=2,
        selection={"method": selection, "clients_per_round": 5},
        training={"schedule": "linear"},
        engine={"kind": kind},
    )
    last = muster.run(experiment, workers=0).records[-1].trainings[0]
    assert len(last.clients) == 5
    assert not last.rejected


def test_mean_gradient_exists_only_after_training(make_client):
    with pytest.raises(ConfigError, match="mean_gradient"):
        MeanGradient().measure(make_client())
