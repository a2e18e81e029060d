"""Building models: determinism, users' own models, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.models import build_model


class OwnModel(nn.Module):
    def __init__(self, classes: int, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(6, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x).relu())


def vector(model: nn.Module) -> np.ndarray:
    return FlatModel(model).vector()


def test_the_seed_decides_and_global_state_is_untouched():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = vector(build_model("mlp", (4,), 3, seed=1))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, vector(build_model("mlp", (4,), 3, seed=1)))
    assert not np.array_equal(first, vector(build_model("mlp", (4,), 3, seed=2)))


def test_a_class_gets_what_its_constructor_asks_for():
    model = build_model(OwnModel, (6,), 3, {"width": 9}, seed=1)
    assert model.head.weight.shape == (3, 9)
    np.testing.assert_array_equal(vector(model), vector(build_model(OwnModel, (6,), 3, {"width": 9}, seed=1)))


def test_functions_with_and_without_arguments():
    assert isinstance(build_model(lambda: nn.Linear(6, 3), (6,), 3), nn.Linear)
    assert build_model(lambda input_shape, classes: nn.Linear(input_shape[0], classes), (6,), 3).in_features == 6
    made = build_model(lambda **given: nn.Linear(given["input_shape"][0], given["classes"]), (6,), 3)
    assert made.out_features == 3


def test_options_of_a_function_are_checked():
    with pytest.raises(ConfigError, match=r"unknown key 'model\.wide'"):
        build_model(OwnModel, (6,), 3, {"wide": 9})
    with pytest.raises(ConfigError, match=r"bad value for 'model\.width'"):
        build_model(OwnModel, (6,), 3, {"width": "nine"})


def test_an_instance_is_copied_with_its_parameters():
    own = OwnModel(3)
    model = build_model(own, (6,), 3, seed=7)
    assert model is not own
    np.testing.assert_array_equal(vector(model), vector(own))
    with torch.no_grad():
        model.head.bias.add_(1)
    assert not torch.equal(model.head.bias, own.head.bias)


def test_options_for_an_instance_are_refused():
    with pytest.raises(ConfigError, match="a model that already exists: width"):
        build_model(OwnModel(3), (6,), 3, {"width": 9})


@pytest.mark.parametrize("wrong", [3, None, lambda: "model"])
def test_things_that_are_no_models_are_refused(wrong):
    with pytest.raises(ConfigError, match="the model is of type"):
        build_model(wrong, (6,), 3)


def test_wrong_number_of_outputs_is_refused():
    with pytest.raises(ConfigError, match="'head' has 4 outputs"):
        build_model(OwnModel(4), (6,), 3)


def test_models_that_cannot_be_flat_are_refused():
    with pytest.raises(ConfigError, match="lazy"):
        build_model(lambda: nn.LazyLinear(3), (6,), 3)
    with pytest.raises(ConfigError, match="no trainable parameters"):
        build_model(OwnModel(3).requires_grad_(False), (6,), 3)
