"""Counting what a training sample costs."""

import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import build_model, models
from muster.models.flops import training_flops

#: What each model takes; the rest take small pictures.
SHAPES = {"char-lstm": (20,), "text-classifier": (12,), "late-fusion": (48,), "mlp": (30,), "logistic": (30,)}


def test_a_dense_layer_by_hand():
    # Forward 2·30·7; backward the same for the weights, and nothing for the data, which have no gradient.
    assert training_flops(nn.Linear(30, 7), torch.zeros(1, 30)) == 2 * 2 * 30 * 7


def test_two_dense_layers_by_hand():
    model = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 7))
    assert training_flops(model, torch.zeros(1, 30)) == 2 * 2 * 30 * 8 + 3 * 2 * 8 * 7


def test_a_convolution_by_hand():
    # 5 channels · 6 · 6 places · 3 channels · 3 · 3 weights.
    assert training_flops(nn.Conv2d(3, 5, 3), torch.zeros(1, 3, 8, 8)) == 2 * 2 * 5 * 36 * 27


def test_recurrent_layers_count():
    hidden, steps, embedding = 16, 20, 8
    model = build_model("char-lstm", (steps,), 30, {"hidden": hidden, "embedding": embedding})
    recurrent = steps * 2 * 4 * hidden * (embedding + hidden)
    counted = training_flops(model, torch.zeros(1, steps, dtype=torch.long))
    # Three times the forward pass, up to the first state's gradient and the dense layer on the last state.
    assert 2.8 * recurrent < counted < 3.1 * recurrent + 3 * 2 * hidden * 30


def test_the_model_stays_as_it_was_and_is_counted_once(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = training_flops(model, torch.zeros(1, 4))
    monkeypatch.setattr("muster.models.flops._count", None)
    assert training_flops(model, torch.ones(3, 4)) == first
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_counted_is_said():
    class Peeking(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if x.sum().item() > 0 else 1)

    with pytest.raises(ConfigError, match="cannot count the FLOPs of Peeking"):
        training_flops(Peeking(3, 3), torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="count as zero"):
        training_flops(nn.BatchNorm1d(3), torch.zeros(1, 3))


@pytest.mark.parametrize("name", [n for n in models if n not in ("text-classifier", "late-fusion", "bert")])
def test_every_model_of_pictures_and_characters_can_be_counted(name):
    shape = SHAPES.get(name, (3, 32, 32))
    dtype = torch.long if name == "char-lstm" else torch.float32
    assert training_flops(build_model(name, shape, 10), torch.zeros((1, *shape), dtype=dtype)) > 0
