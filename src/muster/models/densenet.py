"""DenseNet-121: every layer sees the outputs of all layers before it in its block (Huang et al., 2017)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from muster.models._layers import Norm, Stem, initialise_convolutions, normalisation
from muster.models.base import image_size, models

_GROWTH = 32
_BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """A 1×1 bottleneck and a 3×3 convolution, whose output is appended to the input."""

    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1 = norm(channels)
        self.conv1 = nn.Conv2d(channels, 4 * _GROWTH, 1, bias=False)
        self.norm2 = norm(4 * _GROWTH)
        self.conv2 = nn.Conv2d(4 * _GROWTH, _GROWTH, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(narrow)))], dim=1)


def _stem(channels: int, filters: int, stem: Stem, norm: Callable[[int], nn.Module]) -> dict[str, nn.Module]:
    if stem == "cifar":
        return {
            "conv0": nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            "norm0": norm(filters),
            "relu0": nn.ReLU(),
        }
    return {
        "conv0": nn.Conv2d(channels, filters, 7, stride=2, padding=3, bias=False),
        "norm0": norm(filters),
        "relu0": nn.ReLU(),
        "pool0": nn.MaxPool2d(3, stride=2, padding=1),
    }


def _transition(channels: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """Halves channels, height and width between two blocks."""
    return nn.Sequential(
        OrderedDict(
            norm=norm(channels),
            relu=nn.ReLU(),
            conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


class DenseNet(nn.Module):
    """Stem, dense blocks with transitions between them, average pooling and one dense layer."""

    def __init__(self, channels: int, classes: int, stem: Stem, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        width = 2 * _GROWTH
        parts = _stem(channels, width, stem, norm)
        for number, layers in enumerate(_BLOCKS, start=1):
            parts[f"denseblock{number}"] = nn.Sequential(
                OrderedDict((f"denselayer{i + 1}", DenseLayer(width + i * _GROWTH, norm)) for i in range(layers))
            )
            width += layers * _GROWTH
            if number < len(_BLOCKS):
                parts[f"transition{number}"] = _transition(width, norm)
                width //= 2
        parts["norm5"] = norm(width)
        self.features = nn.Sequential(OrderedDict(parts))
        self.classifier = nn.Linear(width, classes)
        initialise_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.features(x))
        logits: torch.Tensor = self.classifier(features.mean(dim=(2, 3)))
        return logits


@models.register("densenet121")
def densenet121(
    input_shape: tuple[int, ...], classes: int, *, stem: Stem = "imagenet", norm: Norm = "batch", groups: int = 8
) -> nn.Module:
    """DenseNet-121; `stem = "cifar"` keeps the resolution of small images (3×3 convolution, no pooling)."""
    channels, _, _ = image_size("densenet121", input_shape, smallest=32 if stem == "imagenet" else 8)
    return DenseNet(channels, classes, stem, normalisation(norm, groups))
