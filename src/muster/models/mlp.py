"""Dense models: logistic regression and multilayer perceptrons on flattened samples."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from muster.core.errors import ConfigError
from muster.models.base import models


@models.register("logistic")
def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer."""
    return mlp(input_shape, classes, hidden=())


@models.register("mlp")
def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """Multilayer perceptron with ReLU; `hidden` are the widths of its hidden layers."""
    if any(width < 1 for width in hidden):
        raise ConfigError(f"mlp: a hidden layer of width {min(hidden)}", expected="widths of 1 or more")
    widths = (math.prod(input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
