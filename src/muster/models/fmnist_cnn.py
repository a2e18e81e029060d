"""The Fashion-MNIST network of HiCS-FL's experiments (Chen and Vikalo, 2024)."""

from __future__ import annotations

from torch import nn

from muster.models._layers import check_widths
from muster.models.base import image_size, models


def _convolution(channels: int, filters: int, bias: bool = True) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, 3, padding=1, bias=bias), nn.PReLU(), nn.BatchNorm2d(filters)]


@models.register("fmnist-cnn")
def fmnist_cnn(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    filters: tuple[int, int, int] = (32, 32, 64),
    hidden: int = 64,
) -> nn.Module:
    """Three 3×3 convolutions (32, 32, 64) with PReLU and batch normalisation, and a dense layer of 64."""
    check_widths("fmnist-cnn", *filters, hidden)
    channels, height, width = image_size("fmnist-cnn", input_shape, smallest=4)
    first, second, third = filters
    return nn.Sequential(
        *_convolution(channels, first, bias=False),
        *_convolution(first, second),
        nn.MaxPool2d(2),
        *_convolution(second, third),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(third * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
