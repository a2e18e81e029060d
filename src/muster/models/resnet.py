"""Residual networks: ResNet-20 for CIFAR, ResNet-18 and ResNet-50 (He et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from muster.core.errors import ConfigError
from muster.models._layers import Norm, Stem, check_widths, initialise_convolutions, normalisation
from muster.models.base import image_size, models


class PaddedShortcut(nn.Module):
    """He et al.'s option A: every second pixel, and zeros for the channels that are new. No parameters."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        before = self.new_channels // 2
        return functional.pad(x, (0, 0, 0, 0, before, self.new_channels - before))


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut around them."""

    def __init__(
        self, channels: int, filters: int, stride: int, norm: Callable[[int], nn.Module], padded: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.bn1 = norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = norm(filters)
        self.downsample: nn.Module | None = None
        if channels != filters or stride != 1:
            self.downsample = (
                PaddedShortcut(filters - channels, stride)
                if padded
                else nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), norm(filters))
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(inner)) + shortcut)


class Bottleneck(nn.Module):
    """A 1×1 convolution that narrows, a 3×3 (which has the stride), a 1×1 that widens fourfold, and a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        wide = 4 * filters
        self.conv1 = nn.Conv2d(channels, filters, 1, bias=False)
        self.bn1 = norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, stride, padding=1, bias=False)
        self.bn2 = norm(filters)
        self.conv3 = nn.Conv2d(filters, wide, 1, bias=False)
        self.bn3 = norm(wide)
        self.downsample: nn.Module | None = None
        if channels != wide or stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), norm(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = functional.relu(self.bn1(self.conv1(x)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        return functional.relu(self.bn3(self.conv3(inner)) + shortcut)


class ResNet(nn.Module):
    """A stem, stages of residual blocks, average pooling and one dense layer."""

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        widths: tuple[int, ...],
        blocks: int | tuple[int, ...],
        stem: Stem,
        norm: Callable[[int], nn.Module],
        padded: bool = False,
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        wide = stem == "imagenet"
        self.conv1 = nn.Conv2d(
            channels, widths[0], 7 if wide else 3, stride=2 if wide else 1, padding=3 if wide else 1, bias=False
        )
        self.bn1 = norm(widths[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if wide else nn.Identity()
        self.stages: list[str] = []
        channels = widths[0]
        counts = (blocks,) * len(widths) if isinstance(blocks, int) else blocks
        for number, (filters, count) in enumerate(zip(widths, counts, strict=True), start=1):
            stage: list[nn.Module] = []
            for position in range(count):
                stride = 2 if position == 0 and number > 1 else 1
                if bottleneck:
                    stage.append(Bottleneck(channels, filters, stride, norm))
                else:
                    stage.append(Block(channels, filters, stride, norm, padded))
                channels = 4 * filters if bottleneck else filters
            self.add_module(f"layer{number}", nn.Sequential(*stage))
            self.stages.append(f"layer{number}")
        #: How many numbers the classification layer takes.
        self.width = channels
        self.fc = nn.Linear(channels, classes)
        initialise_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


@models.register("resnet20")
def resnet20(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    shortcut: Literal["padded", "projection"] = "padded",
    norm: Norm = "batch",
    groups: int = 8,
    width: int = 16,
    blocks: int = 3,
) -> nn.Module:
    """ResNet-20 for CIFAR: three stages of three blocks, 16 to 64 channels. n blocks make 6 n + 2 layers."""
    check_widths("resnet20", width)
    if blocks < 1:
        raise ConfigError(f"resnet20: {blocks} blocks a stage", expected="1 or more")
    channels, _, _ = image_size("resnet20", input_shape, smallest=4)
    make_norm = normalisation(norm, groups)
    padded = shortcut == "padded"
    widths = (width, 2 * width, 4 * width)
    return ResNet(channels, classes, widths=widths, blocks=blocks, stem="cifar", norm=make_norm, padded=padded)


@models.register("resnet18")
def resnet18(
    input_shape: tuple[int, ...], classes: int, *, stem: Stem = "imagenet", norm: Norm = "batch", groups: int = 8
) -> nn.Module:
    """ResNet-18; `stem = "cifar"` keeps the resolution of small images (3×3 convolution, no pooling)."""
    channels, _, _ = image_size("resnet18", input_shape, smallest=32 if stem == "imagenet" else 8)
    widths = (64, 128, 256, 512)
    return ResNet(channels, classes, widths=widths, blocks=2, stem=stem, norm=normalisation(norm, groups))


@models.register("resnet50")
def resnet50(
    input_shape: tuple[int, ...], classes: int, *, stem: Stem = "imagenet", norm: Norm = "batch", groups: int = 8
) -> nn.Module:
    """ResNet-50, with the stride in the 3×3 convolutions as torchvision has it."""
    channels, _, _ = image_size("resnet50", input_shape, smallest=32 if stem == "imagenet" else 8)
    return ResNet(
        channels,
        classes,
        widths=(64, 128, 256, 512),
        blocks=(3, 4, 6, 3),
        stem=stem,
        norm=normalisation(norm, groups),
        bottleneck=True,
    )
