"""The convolutional network for handwritten characters of LEAF (Caldas et al., 2018; McMahan et al., 2017)."""

from __future__ import annotations

from torch import nn

from muster.models._layers import pool_and_relu
from muster.models.base import image_size, models


@models.register("femnist-cnn")
def femnist_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5×5 convolutions (32, 64) with pooling and a dense layer of 512, for MNIST and FEMNIST."""
    channels, height, width = image_size("femnist-cnn", input_shape, smallest=4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        *pool_and_relu(),
        nn.Conv2d(32, 64, 5, padding=2),
        *pool_and_relu(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
