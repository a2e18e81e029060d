"""Parts that several model families share: activation, normalisation, initialisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import nn

from muster.core.errors import ConfigError

Norm: TypeAlias = Literal["batch", "group"]
Stem: TypeAlias = Literal["imagenet", "cifar"]


def normalisation(kind: Norm, groups: int, eps: float = 1e-5) -> Callable[[int], nn.Module]:
    """Makes the normalisation layer for a number of channels; both kinds have a weight and a bias per channel."""

    def make(channels: int) -> nn.Module:
        if kind == "batch":
            return nn.BatchNorm2d(channels, eps)
        if groups < 1 or channels % groups:
            raise ConfigError(
                f"group normalisation cannot divide {channels} channels into {groups} groups",
                expected="a number of groups that divides the width of every layer",
                fix="change the option `groups`, e.g. to 8",
            )
        return nn.GroupNorm(groups, channels, eps)

    return make


def check_widths(model: str, *widths: int) -> None:
    """A layer without units is refused."""
    if min(widths) < 1:
        raise ConfigError(f"{model}: a layer of width {min(widths)}", expected="widths of 1 or more")


def pool_and_relu() -> list[nn.Module]:
    """2×2 max pooling, then ReLU: the values and gradients of the other order for a quarter of its work."""
    return [nn.MaxPool2d(2), nn.ReLU()]


def initialise_convolutions(model: nn.Module) -> None:
    """He et al.'s (2015) normal initialisation for ReLU networks, by the number of outgoing connections."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
