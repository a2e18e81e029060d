"""MobileNetV2: inverted residuals with linear bottlenecks (Sandler et al., 2018), with group normalisation."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from muster.models._layers import Norm, initialise_convolutions, normalisation
from muster.models.base import image_size, models

#: (expansion, channels, repetitions, stride of the first) of every stage.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM, _LAST = 32, 1280
#: timm's names of a block's layers, and where they are in ours: without widening, and with it.
_TIMM_NARROW = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
_TIMM_WIDE = {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}


def _convolution(
    channels: int,
    filters: int,
    kernel: int,
    norm: Callable[[int], nn.Module],
    *,
    stride: int = 1,
    depthwise: bool = False,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(
            channels,
            filters,
            kernel,
            stride,
            padding=kernel // 2,
            groups=channels if depthwise else 1,
            bias=False,
        ),
        norm(filters),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel on its own, narrow without activation; a shortcut where shapes allow it."""

    def __init__(
        self, channels: int, filters: int, stride: int, expansion: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [] if expansion == 1 else [_convolution(channels, wide, 1, norm)]
        self.conv = nn.Sequential(
            *widen,
            _convolution(wide, wide, 3, norm, stride=stride, depthwise=True),
            nn.Conv2d(wide, filters, 1, bias=False),
            norm(filters),
        )
        self.shortcut = stride == 1 and channels == filters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow: torch.Tensor = self.conv(x)
        return x + narrow if self.shortcut else narrow


class MobileNetV2(nn.Module):
    """Stem, inverted residuals, a last 1×1 convolution, average pooling and one dense layer."""

    head_part = "classifier"

    def __init__(self, channels: int, classes: int, norm: Callable[[int], nn.Module], dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(channels, _STEM, 3, norm, stride=2)]
        width = _STEM
        for expansion, filters, repetitions, stride in _STAGES:
            for repetition in range(repetitions):
                layers.append(InvertedResidual(width, filters, stride if repetition == 0 else 1, expansion, norm))
                width = filters
        self.features = nn.Sequential(*layers, _convolution(width, _LAST, 1, norm))
        head = nn.Linear(_LAST, classes)
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
        self.classifier = nn.Sequential(nn.Dropout(dropout), head)
        initialise_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(x).mean(dim=(2, 3)))
        return logits

    def own_names(self, given: Collection[str]) -> dict[str, str]:
        """Our names for those of timm's `mobilenetv2_100`; nothing where the names are not timm's."""
        if "conv_stem.weight" not in given:
            return {}
        layers = {"conv_stem": "features.0.0", "bn1": "features.0.1", "classifier": "classifier.1"}
        number = 1
        for stage, (expansion, _, repetitions, _) in enumerate(_STAGES):
            places = _TIMM_NARROW if expansion == 1 else _TIMM_WIDE
            for repetition in range(repetitions):
                for theirs, ours in places.items():
                    layers[f"blocks.{stage}.{repetition}.{theirs}"] = f"features.{number}.conv.{ours}"
                number += 1
        layers |= {"conv_head": f"features.{number}.0", "bn2": f"features.{number}.1"}
        pairs = ((name, *name.rpartition(".")[::2]) for name in given)
        return {name: f"{layers[layer]}.{tensor}" for name, layer, tensor in pairs if layer in layers}


@models.register("mobilenetv2")
def mobilenetv2(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: Norm = "group",
    groups: int = 8,
    eps: float = 1e-5,
    dropout: float = 0.2,
) -> nn.Module:
    """MobileNetV2 with group normalisation (or batch normalisation: `norm = "batch"`).

    `eps` is what normalisation adds to variances.
    """
    channels, _, _ = image_size("mobilenetv2", input_shape, smallest=28)
    return MobileNetV2(channels, classes, normalisation(norm, groups, eps), dropout)
