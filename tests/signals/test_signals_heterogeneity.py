"""The interaction matrix and the heterogeneity triplet as signals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.heterogeneity.estimate import EstimateRecipe
from muster.heterogeneity.metrics import triplet
from muster.server.testing import FakeFederation
from muster.signals.base import signals
from muster.signals.heterogeneity import HeterogeneityTriplet, InteractionMatrix

ATTRIBUTES = np.arange(30) % 2


def table(client):
    counts = np.zeros((3, 2))
    np.add.at(counts, (client.labels.numpy(), ATTRIBUTES), 1)
    return counts


def test_the_matrix_counts_classes_and_attributes(make_client):
    client = make_client(attributes=ATTRIBUTES, attribute_values=2)
    np.testing.assert_array_equal(InteractionMatrix().measure(client), table(client).ravel())
    assert InteractionMatrix().width(FakeFederation(3, classes=3).population) == 6
    assert not InteractionMatrix().uses_model


def test_the_true_triplet(make_client):
    client = make_client(attributes=ATTRIBUTES, attribute_values=2)
    signal = HeterogeneityTriplet(estimate="true")
    np.testing.assert_array_equal(signal.measure(client), triplet(table(client)))
    assert not signal.uses_model
    assert signal.samples(30, 8) == 0


def test_the_estimate_knows_the_classes_and_leaves_everything_as_it_was(make_client):
    client = make_client()
    before, random_state = client.model.vector(), torch.get_rng_state()
    values = HeterogeneityTriplet().measure(client)
    assert values.shape == (3,)
    assert ((values >= 0) & (values <= 1)).all()
    assert values[0] == pytest.approx(triplet(table(client))[0], abs=1e-12)
    np.testing.assert_array_equal(client.model.vector(), before)
    assert torch.equal(torch.get_rng_state(), random_state)
    again = make_client()
    torch.manual_seed(99)
    np.testing.assert_array_equal(HeterogeneityTriplet().measure(again), values)


@pytest.mark.parametrize(("degenerate", "expected"), [("single", 1.0), ("skip", 0.0)])
def test_without_two_groups(make_client, degenerate, expected):
    client = make_client()
    client.labels = torch.zeros(30, dtype=torch.int64)
    signal = HeterogeneityTriplet(degenerate=degenerate, recipe=EstimateRecipe(biased_steps=80, lr=0.2))
    np.testing.assert_allclose(signal.measure(client), [1.0, expected, 0.0])


def test_cost():
    assert HeterogeneityTriplet().samples(200, 64) == 50 * 28 + 200
    assert HeterogeneityTriplet(models=3).samples(200, 64) == 3 * (50 * 28 + 200)


def test_what_cannot_be_had_is_said_before_the_first_round(make_client):
    without = FakeFederation(4, attributes=None).population
    assert "no attributes" in InteractionMatrix().unavailable(without)
    assert "no attributes" in HeterogeneityTriplet(estimate="true").unavailable(without)
    assert HeterogeneityTriplet().unavailable(without) is None
    assert InteractionMatrix().unavailable(FakeFederation(4).population) is None
    with pytest.raises(ConfigError, match="no attributes"):
        InteractionMatrix().measure(make_client())


def test_one_class_leaves_nothing_to_estimate(make_client):
    client = make_client()
    client.labels, client.classes = torch.zeros(30, dtype=torch.int64), 1
    np.testing.assert_array_equal(HeterogeneityTriplet().measure(client), [0, 0, 0])
    np.testing.assert_array_equal(HeterogeneityTriplet(degenerate="single").measure(client), [0, 1, 0])


def test_a_model_that_ends_in_a_convolution_is_refused(make_client):
    weight = SpecEntry("last.weight", (3, 1, 6), 0, 18)
    population = FakeFederation(4, spec=ParameterSpec((weight,), final_layer_name="last")).population
    assert "linear" in HeterogeneityTriplet().unavailable(population)

    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Conv1d(1, 3, 6)

        def forward(self, x):
            return self.last(x[:, None])[:, :, 0]

    with pytest.raises(ConfigError, match=r"nn\.Linear"):
        HeterogeneityTriplet().measure(make_client(model=Convolved()))


def test_registered():
    assert isinstance(signals.build("heterogeneity_triplet", {"recipe": {"q": 0.7}}), HeterogeneityTriplet)
    assert "interaction_matrix" in signals
