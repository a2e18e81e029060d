"""A LeNet for CIFAR-100: two wide convolutions and three dense layers (after LeCun et al., 1998)."""

from __future__ import annotations

from torch import nn

from muster.models._layers import pool_and_relu
from muster.models.base import image_size, models


@models.register("lenet")
def lenet(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5×5 convolutions (64, 64) with pooling and dense layers of 384 and 192."""
    channels, height, width = image_size("lenet", input_shape, smallest=4)
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5, padding=2),
        *pool_and_relu(),
        nn.Conv2d(64, 64, 5, padding=2),
        *pool_and_relu(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )
