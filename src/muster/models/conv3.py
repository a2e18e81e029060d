"""Conv-3 of ASTraFL's evaluation: three convolutions, each followed by pooling, and two dense layers."""

from __future__ import annotations

from torch import nn

from muster.core.errors import ConfigError
from muster.models._layers import check_widths, pool_and_relu
from muster.models.base import image_size, models


@models.register("conv3")
def conv3(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    padding: int = 0,
    filters: tuple[int, int, int] = (32, 64, 128),
    hidden: tuple[int, int] = (256, 128),
) -> nn.Module:
    """Three 3×3 convolutions (32, 64, 128) with pooling and dense layers of 256 and 128."""
    check_widths("conv3", *filters, *hidden)
    if padding not in (0, 1):
        raise ConfigError(f"conv3: padding is {padding}", expected="0 or 1")
    channels, height, width = image_size("conv3", input_shape, smallest=8 if padding else 22)

    def after(side: int) -> int:
        for _ in range(3):
            side = (side - 2 + 2 * padding) // 2
        return side

    layers: list[nn.Module] = []
    for count in filters:
        layers += [nn.Conv2d(channels, count, 3, padding=padding), *pool_and_relu()]
        channels = count
    wide, narrow = hidden
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * after(height) * after(width), wide),
        nn.ReLU(),
        nn.Linear(wide, narrow),
        nn.ReLU(),
        nn.Linear(narrow, classes),
    )
