"""A small convolutional network with group normalisation (Wu and He, 2018), which does not depend on batches."""

from __future__ import annotations

from torch import nn

from muster.core.errors import ConfigError
from muster.models._layers import normalisation, pool_and_relu
from muster.models.base import image_size, models


@models.register("group-norm-cnn")
def group_norm_cnn(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    widths: tuple[int, ...] = (32, 64, 128),
    groups: int = 8,
    grid: int = 1,
) -> nn.Module:
    """A 3×3 convolution with group normalisation for each of `widths`, average pooling and one dense layer.

    The pooling leaves a grid of `grid` × `grid` cells: with more than one, the dense layer sees where things are.
    """
    if not widths:
        raise ConfigError("group-norm-cnn: no widths", expected="the number of filters of every layer")
    if grid < 1:
        raise ConfigError(f"group-norm-cnn: grid is {grid}", expected="at least 1")
    channels, _, _ = image_size("group-norm-cnn", input_shape, smallest=grid * 2 ** (len(widths) - 1))
    outputs = widths[-1] * grid**2
    return nn.Sequential(*convolutions(channels, widths, groups, grid), nn.Linear(outputs, classes))


def convolutions(channels: int, widths: tuple[int, ...], groups: int, grid: int = 1) -> list[nn.Module]:
    """Layers from images to vectors: `widths[-1]` numbers per cell; all but the last halve height and width."""
    norm = normalisation("group", groups)
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width), *pool_and_relu()]
        channels = width
    return [*layers[:-2], nn.ReLU(), nn.AdaptiveAvgPool2d(grid), nn.Flatten()]
