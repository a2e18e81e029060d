"""LeNet (after LeCun et al., 1998): two convolutions and three dense layers; by default wide, for CIFAR-100."""

from __future__ import annotations

from torch import nn

from muster.core.errors import ConfigError
from muster.models._layers import check_widths, pool_and_relu
from muster.models.base import image_size, models


@models.register("lenet")
def lenet(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    filters: tuple[int, int] = (64, 64),
    hidden: tuple[int, int] = (384, 192),
    padding: int = 2,
) -> nn.Module:
    """Two 5×5 convolutions (64, 64) with pooling and dense layers of 384 and 192."""
    check_widths("lenet", *filters, *hidden)
    if padding not in (0, 2):
        raise ConfigError(f"lenet: padding is {padding}", expected="0 or 2")
    channels, height, width = image_size("lenet", input_shape, smallest=4 if padding else 16)

    def after(side: int) -> int:
        for _ in range(2):
            side = (side - 4 + 2 * padding) // 2
        return side

    first, second = filters
    wide, narrow = hidden
    return nn.Sequential(
        nn.Conv2d(channels, first, 5, padding=padding),
        *pool_and_relu(),
        nn.Conv2d(first, second, 5, padding=padding),
        *pool_and_relu(),
        nn.Flatten(),
        nn.Linear(second * after(height) * after(width), wide),
        nn.ReLU(),
        nn.Linear(wide, narrow),
        nn.ReLU(),
        nn.Linear(narrow, classes),
    )
