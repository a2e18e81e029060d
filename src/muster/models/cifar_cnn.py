"""The five-layer networks for CIFAR-10 (Chen and Vikalo, 2024) and CIFAR-100 (Liu et al., 2024)."""

from __future__ import annotations

from torch import nn

from muster.core.errors import ConfigError
from muster.models._layers import check_widths, pool_and_relu
from muster.models.base import image_size, models


@models.register("cifar10-cnn")
def cifar10_cnn(input_shape: tuple[int, ...], classes: int, *, dropout: float = 0.0) -> nn.Module:
    """Three unpadded 3×3 convolutions (32, 64, 64), two poolings and a dense layer of 64."""
    channels, height, width = image_size("cifar10-cnn", input_shape, smallest=18)
    if not 0 <= dropout < 1:
        raise ConfigError(f"cifar10-cnn: dropout is {dropout}", expected="0 or more, below 1")

    def after(side: int) -> int:
        return ((side - 2) // 2 - 2) // 2 - 2

    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        *pool_and_relu(),
        nn.Dropout(dropout),
        nn.Conv2d(32, 64, 3),
        *pool_and_relu(),
        nn.Dropout(dropout),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(64 * after(height) * after(width), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


@models.register("cifar100-cnn")
def cifar100_cnn(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    filters: tuple[int, int] = (64, 128),
    hidden: tuple[int, int] = (256, 128),
) -> nn.Module:
    """Two unpadded 5×5 convolutions (64, 128) with pooling and dense layers of 256 and 128."""
    check_widths("cifar100-cnn", *filters, *hidden)
    channels, height, width = image_size("cifar100-cnn", input_shape, smallest=16)

    def after(side: int) -> int:
        return ((side - 4) // 2 - 4) // 2

    first, second = filters
    wide, narrow = hidden
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        *pool_and_relu(),
        nn.Conv2d(first, second, 5),
        *pool_and_relu(),
        nn.Flatten(),
        nn.Linear(second * after(height) * after(width), wide),
        nn.ReLU(),
        nn.Linear(wide, narrow),
        nn.ReLU(),
        nn.Linear(narrow, classes),
    )
