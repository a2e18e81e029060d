"""The option `init`: what is drawn again, and what is left alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models import build_model


def weights(init, seed=0):
    options = {} if init is None else {"init": init}
    return build_model("fmnist-cnn", (1, 28, 28), 10, options, seed=seed).state_dict()


def test_xavier_draws_weights_up_to_glorots_bound_and_leaves_biases():
    plain, drawn = weights(None), weights("xavier")
    for name, fan_in, fan_out in (("0.weight", 9, 32 * 9), ("12.weight", 64 * 49, 64), ("14.weight", 64, 10)):
        bound = math.sqrt(2) * math.sqrt(6 / (fan_in + fan_out))
        largest = drawn[name].abs().max().item()
        assert 0.95 * bound < largest <= bound
        # Uniform on ±bound.
        assert drawn[name].std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert not torch.equal(plain[name], drawn[name])
    same = [name for name in plain if torch.equal(plain[name], drawn[name])]
    assert {"3.bias", "12.bias", "14.bias"} <= set(same)
    assert sum(name.endswith("weight") and plain[name].dim() > 1 for name in same) == 0


def test_the_seed_decides_and_the_default_is_the_layers_own():
    assert all(
        torch.equal(a, b) for a, b in zip(weights("xavier").values(), weights("xavier").values(), strict=True)
    )
    assert not torch.equal(weights("xavier", 0)["14.weight"], weights("xavier", 1)["14.weight"])
    assert torch.equal(weights("default")["14.weight"], weights(None)["14.weight"])


def test_refusals():
    with pytest.raises(ConfigError, match=r"model\.init.*'xavir'"):
        weights("xavir")
    with pytest.raises(ConfigError, match="already exists"):
        build_model(nn.Linear(4, 3), (4,), 3, {"init": "xavier"})
