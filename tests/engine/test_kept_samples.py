"""Samples that are evaluated again and again are prepared once, within bounds, and change no result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import muster
from muster.data.federated import Normalisation
from muster.engine import runtime as under_test
from muster.engine.runtime import ClientRuntime
from muster.experiment.parts import build_ingredients


@pytest.fixture
def made():
    parts = build_ingredients(muster.Experiment(model={"name": "mlp", "hidden": [8]}))
    return ClientRuntime(parts.data, parts.module, parts.training, parts.algorithm, seed=0)


def predicted(made: ClientRuntime, positions):
    origin = torch.linspace(-1, 1, made.model.spec.size)
    return made.predict(np.asarray(positions), origin)


@pytest.mark.parametrize("room", [0, 100 * 64 * 4, under_test.KEPT_FOR_EVALUATION])
def test_kept_or_made_anew_the_predictions_are_the_same(made, room):
    made._room = room
    blocks = [range(100), range(50, 150), range(100)]
    found = [predicted(made, block) for block in blocks]
    np.testing.assert_array_equal(found[0].losses, found[2].losses)
    np.testing.assert_array_equal(found[0].losses[50:], found[1].losses[:50])
    kept = sum(features.nbytes for features, _ in made._kept.values())
    assert kept == min(room, 2 * 100 * 64 * 4), "blocks of 100 samples with 64 float32 numbers each"


def test_a_whole_run_has_the_same_bits_without_kept_samples(monkeypatch):
    experiment = muster.Experiment(rounds=3, evaluation={"every": 1})
    one = muster.run(experiment, workers=0)
    monkeypatch.setattr(under_test, "KEPT_FOR_EVALUATION", 0)
    other = muster.run(experiment, workers=0)
    assert one.records == other.records


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
def test_normalising_leaves_the_samples_alone(kind):
    raw = np.arange(2 * 3 * 4, dtype=kind).reshape(2, 3, 4)
    features = torch.from_numpy(raw.copy())
    found = Normalisation((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), 1 / 255).apply(features)
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1), torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
    assert torch.equal(found, (features.float() * (1 / 255) - mean) / std)
    np.testing.assert_array_equal(features.numpy(), raw)
