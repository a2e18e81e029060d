"""Parts and norms of updates."""

import numpy as np
import pytest
from torch import nn

from muster.component import Population
from muster.errors import ConfigError
from muster.parameters import spec_of
from muster.signals.base import TrainOutcome, signals
from muster.signals.compressed import CompressedUpdate
from muster.signals.gradients import MeanGradient
from muster.signals.updates import (
    BiasUpdate,
    FinalBiasNorm,
    FinalLayerNorm,
    FinalLayerUpdate,
    FinalWeightNorm,
    PartOfUpdate,
    WholeUpdate,
)


def population(model):
    return Population(np.array([10, 20]), 2, spec_of(model), 5)


@pytest.fixture
def moved(make_client):
    """ΔW = [[3, 0], [0, 4]], Δb = (0, 12) in the last layer, and something in the first."""
    client = make_client(model=nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2)))
    client.movement = np.full(client.spec.size, 7.0, dtype=np.float32)
    client.movement[client.spec.final_layer] = [3, 0, 0, 4, 0, 12]
    return client


def test_worked_example(moved):
    assert FinalLayerNorm().measure(moved).tolist() == [13.0]
    assert FinalWeightNorm().measure(moved).tolist() == [5.0]
    assert FinalBiasNorm().measure(moved).tolist() == [12.0]
    assert FinalLayerUpdate().measure(moved).tolist() == [3, 0, 0, 4, 0, 12]
    assert BiasUpdate().measure(moved).tolist() == [0, 12]
    assert len(WholeUpdate().measure(moved)) == moved.spec.size


@pytest.mark.parametrize(
    "signal",
    [FinalLayerNorm(), FinalWeightNorm(), FinalBiasNorm(), FinalLayerUpdate(), BiasUpdate(), WholeUpdate()],
)
def test_width_is_what_is_measured_and_nothing_travels_twice(moved, signal):
    assert len(signal.measure(moved)) == signal.width(population(moved.model.module))
    assert signal.in_update
    assert signal.reportable
    assert not signal.askable


def test_running_statistics_and_counters_are_not_part_of_the_update(make_client):
    client = make_client()
    client.movement = np.arange(client.spec.size, dtype=np.float32)
    trained = sum(parameter.numel() for parameter in client.model.module.parameters())
    assert trained == client.spec.size - 11  # five running means, five variances, one counter
    np.testing.assert_array_equal(WholeUpdate().measure(client), np.arange(trained))


MEASURED_ON_UPDATES = sorted(
    name
    for name in signals.names()
    if issubclass(signals.get(name), PartOfUpdate | MeanGradient | CompressedUpdate)
)


@pytest.mark.parametrize("name", MEASURED_ON_UPDATES)
def test_running_statistics_have_no_say_in_what_an_update_tells(make_client, name):
    client, rng = make_client(), np.random.default_rng(0)
    client.outcome = TrainOutcome(steps=2)
    client.movement = rng.normal(size=client.spec.size).astype(np.float32)
    signal = signals.build(name, {})
    usual = signal.measure(client)
    client.movement[client.spec.trainable.stop :] *= 1e6
    np.testing.assert_array_equal(signal.measure(client), usual)


def test_a_layer_without_bias_has_no_bias_signals():
    federation = population(nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2, bias=False)))
    assert "no bias" in BiasUpdate().unavailable(federation)
    assert "no bias" in FinalBiasNorm().unavailable(federation)
    assert FinalLayerNorm().unavailable(federation) is None


def test_a_model_without_a_classification_layer_is_refused():
    assert "classification layer" in FinalLayerNorm().unavailable(population(nn.Sequential(nn.Embedding(3, 2))))


def test_asking_before_training_is_an_error(make_client):
    with pytest.raises(ConfigError, match="only after training"):
        FinalLayerNorm().measure(make_client())
