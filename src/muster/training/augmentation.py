"""Augmentation: pictures are changed at random whenever a client trains on them.

An operation is a function of a whole mini-batch and of a generator. It draws one number per picture with NumPy, on
the processor, so that the same pictures come out on every device, with any number of workers and in every engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from muster.core.errors import ConfigError, DataError
from muster.core.registry import Registry
from muster.data.federated import Dataset, Normalisation

#: A name, or a table with the name and options.
OperationConfig: TypeAlias = str | dict[str, Any]


@dataclass(frozen=True)
class Palette:
    """How the numbers that a model sees relate to the brightness of pixels (0: black, 1: full)."""

    #: 1 × channels × 1 × 1.
    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def of(cls, normalisation: Normalisation) -> Palette:
        mean, std = torch.tensor(normalisation.mean), torch.tensor(normalisation.std)
        return cls(mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1))

    def on(self, device: torch.device) -> Palette:
        return Palette(self.mean.to(device), self.std.to(device))

    @property
    def black(self) -> torch.Tensor:
        return -self.mean / self.std

    def pixels(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures * self.std + self.mean

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        return (pixels - self.mean) / self.std


class Operation(ABC):
    """One random change of pictures. Implementations are frozen dataclasses; options are fields.

    >>> class Negative(Operation):
    ...     '''Inverts every other picture, at random.'''
    ...
    ...     def check(self):
    ...         '''There are no options.'''
    ...
    ...     def __call__(self, pictures, palette, rng):
    ...         inverted = torch.from_numpy(rng.random(len(pictures)) < 0.5).view(-1, 1, 1, 1)
    ...         return torch.where(inverted, palette.normalised(1 - palette.pixels(pictures)), pictures)
    >>> palette = Palette(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    >>> Negative()(torch.full((4, 1, 1, 1), 0.25), palette, np.random.default_rng(0)).flatten().tolist()
    [0.25, 0.75, 0.75, 0.75]
    """

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if the options make no sense."""

    @abstractmethod
    def __call__(self, pictures: torch.Tensor, palette: Palette, rng: np.random.Generator) -> torch.Tensor:
        """The changed pictures, in the same shape: samples × channels × height × width."""


class Rearrangement(Operation):
    """An operation that moves pixels and computes nothing with them.

    So what it makes of a picture is the same to the bit whichever pictures are beside it, and those of many
    clients can be rearranged at once. This is not true of sums and products: their rounding may depend on where in
    a tensor a number lies.
    """

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        """What is drawn for `count` pictures: a row or number for each."""

    @abstractmethod
    def move(self, pictures: torch.Tensor, palette: Palette, drawn: npt.NDArray[Any]) -> torch.Tensor:
        """The changed pictures, given what was drawn for them."""

    def __call__(self, pictures: torch.Tensor, palette: Palette, rng: np.random.Generator) -> torch.Tensor:
        return self.move(pictures, palette, self.draw(len(pictures), rng))


operations: Registry[Operation] = Registry("augmentation", "muster.training", "muster.augmentations")


@operations.register("crop")
@dataclass(frozen=True)
class Crop(Rearrangement):
    """Shifts pictures by up to `padding` pixels in both directions; uncovered pixels are black."""

    padding: int = 4

    def check(self) -> None:
        if self.padding < 1:
            raise ConfigError(
                f"bad value for 'training.augmentation.padding': {self.padding}", expected="1 or more"
            )

    def draw(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        return rng.integers(0, 2 * self.padding, (2, count), endpoint=True).T

    def move(self, pictures: torch.Tensor, palette: Palette, drawn: npt.NDArray[np.int64]) -> torch.Tensor:
        count, channels, height, width = pictures.shape
        pad = self.padding
        framed = palette.black.expand(count, channels, height + 2 * pad, width + 2 * pad).clone()
        framed[:, :, pad : pad + height, pad : pad + width] = pictures
        rows, columns = torch.from_numpy(drawn.T.copy()).to(pictures.device)
        # A view of every window of every framed picture; only the chosen ones are copied, whole rows at a time.
        windows = framed.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(count, device=pictures.device), :, rows, columns]


@operations.register("flip")
@dataclass(frozen=True)
class Flip(Rearrangement):
    """Mirrors pictures, left to right, with probability `chance`."""

    chance: float = 0.5

    def check(self) -> None:
        if not 0 < self.chance <= 1:
            raise ConfigError(
                f"bad value for 'training.augmentation.chance': {self.chance}", expected="0 < chance ≤ 1"
            )

    def draw(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        return rng.random(count) < self.chance

    def move(self, pictures: torch.Tensor, palette: Palette, drawn: npt.NDArray[np.bool_]) -> torch.Tensor:
        mirrored = torch.from_numpy(drawn).to(pictures.device)
        return torch.where(_each(mirrored), pictures.flip(3), pictures)


@operations.register("colour-jitter")
@dataclass(frozen=True)
class ColourJitter(Operation):
    """Changes brightness, contrast and saturation, in this order, by factors between 1 − option and 1 + option."""

    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2

    def check(self) -> None:
        for key in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(
                    f"bad value for 'training.augmentation.{key}': {getattr(self, key)}", expected="0 to 1"
                )

    def __call__(self, pictures: torch.Tensor, palette: Palette, rng: np.random.Generator) -> torch.Tensor:
        widths = np.array([[self.brightness], [self.contrast], [self.saturation]])
        drawn = 1 + widths * rng.uniform(-1, 1, (3, len(pictures)))
        brightness, contrast, saturation = map(_each, torch.from_numpy(drawn).float().to(pictures.device))
        pixels = (palette.pixels(pictures) * brightness).clamp_(0, 1)
        pixels = torch.lerp(_grey(pixels).mean(dim=(2, 3), keepdim=True), pixels, contrast).clamp_(0, 1)
        pixels = torch.lerp(_grey(pixels), pixels, saturation).clamp_(0, 1)
        return palette.normalised(pixels)


@operations.register("rotation")
@dataclass(frozen=True)
class Rotation(Operation):
    """Turns pictures about their centre by up to `degrees` either way; uncovered pixels are black."""

    degrees: float = 15.0

    def check(self) -> None:
        if not 0 < self.degrees <= 180:
            raise ConfigError(
                f"bad value for 'training.augmentation.degrees': {self.degrees}", expected="0 < degrees ≤ 180"
            )

    def __call__(self, pictures: torch.Tensor, palette: Palette, rng: np.random.Generator) -> torch.Tensor:
        _, _, height, width = pictures.shape
        angles = np.radians(rng.uniform(-self.degrees, self.degrees, len(pictures)))
        zeros, sines, cosines = np.zeros(len(pictures)), np.sin(angles), np.cos(angles)
        # Where each pixel comes from, in coordinates from −1 to 1 along both sides, which may differ in length.
        turns = np.array([[cosines, -sines * height / width, zeros], [sines * width / height, cosines, zeros]])
        theta = torch.from_numpy(turns.transpose(2, 0, 1)).to(pictures)
        grid = nn.functional.affine_grid(theta, list(pictures.shape), align_corners=False)
        # Sampling takes zero for what is outside, so black has to be zero meanwhile.
        seen = nn.functional.grid_sample(pictures - palette.black, grid, align_corners=False)
        return seen + palette.black


class Augmenter:
    """Changes the pictures of training steps."""

    def __init__(self, chosen: Sequence[Operation], palette: Palette, picture: tuple[int, ...] | None) -> None:
        """`picture`: the shape of the picture that a sample begins with; None: a sample is a picture."""
        self._operations, self._palette, self._picture = tuple(chosen), palette, picture
        self._rearrangements = [op for op in self._operations if isinstance(op, Rearrangement)]

    def __call__(self, samples: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """A client's mini-batch, with draws from the generator."""
        pictures = self._pictures(samples)
        for operation in self._operations:
            pictures = operation(pictures, self._palette, rng)
        return self._samples(pictures, samples)

    def of_many(
        self, samples: torch.Tensor, sizes: Sequence[int], rngs: Iterable[np.random.Generator]
    ) -> torch.Tensor:
        """The mini-batches of several clients, one after the other: each changed as it would be alone, to the bit.

        Each generator is used up before the next one is taken.
        """
        if len(self._rearrangements) < len(self._operations):
            batches = zip(torch.split(samples, list(sizes)), rngs, strict=True)
            return torch.cat([self(batch, rng) for batch, rng in batches])
        drawn = [
            [operation.draw(size, rng) for operation in self._rearrangements]
            for size, rng in zip(sizes, rngs, strict=True)
        ]
        pictures = self._pictures(samples)
        for operation, rows in zip(self._rearrangements, zip(*drawn, strict=True), strict=True):
            pictures = operation.move(pictures, self._palette, np.concatenate(rows))
        return self._samples(pictures, samples)

    def _pictures(self, samples: torch.Tensor) -> torch.Tensor:
        if self._picture is None:
            return samples
        return samples[:, : math.prod(self._picture)].reshape(-1, *self._picture)

    def _samples(self, pictures: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The samples with their pictures replaced by the changed ones, in the same layout."""
        if self._picture is not None:
            return torch.cat([pictures.flatten(1), before[:, math.prod(self._picture) :]], dim=1)
        last = before.is_contiguous(memory_format=torch.channels_last) and not before.is_contiguous()
        return pictures.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def build_operations(configs: Sequence[OperationConfig]) -> tuple[Operation, ...]:
    """The operations that `training.augmentation` lists, in its order."""
    built = []
    for config in configs:
        options = {"name": config} if isinstance(config, str) else dict(config)
        if "name" not in options:
            raise ConfigError(
                f"an entry of 'training.augmentation' has no name: {config!r}",
                expected="a name, or a table such as { name = 'crop', padding = 4 }",
            )
        operation = operations.build(options.pop("name"), options, "training.augmentation")
        operation.check()
        built.append(operation)
    return tuple(built)


def augmenter(configs: Sequence[OperationConfig], dataset: Dataset, device: torch.device) -> Augmenter | None:
    """What changes the pictures of this data set in training; None if nothing is."""
    chosen = build_operations(configs)
    if not chosen:
        return None
    _check_pictures(dataset, chosen)
    picture = dataset.picture
    palette = Palette.of(picture.normalisation if picture else dataset.normalisation).on(device)
    return Augmenter(chosen, palette, picture.shape if picture else None)


def _check_pictures(dataset: Dataset, chosen: tuple[Operation, ...]) -> None:
    if dataset.picture is not None:  # it says itself what is a picture, and what is black
        return
    names, shape = ", ".join(operations.name_of(operation) for operation in chosen), dataset.sample_shape
    if dataset.tokens or len(shape) != 3 or shape[0] not in (1, 3):
        what = "are tokens" if dataset.tokens else f"have the shape {shape}"
        raise DataError(
            f"training.augmentation ({names}) changes pictures, but the samples of '{dataset.name}' {what}",
            expected="samples of 1 or 3 channels × height × width",
            fix="leave training.augmentation out",
        )
    if any(isinstance(operation, ColourJitter) for operation in chosen):
        features, scale = dataset.train.features, dataset.normalisation.scale
        full = 255.0 if features.dtype == np.uint8 else float(np.max(features, initial=0.0))
        dark = 0.0 if features.dtype == np.uint8 else float(np.min(features, initial=0.0))
        if dark < 0 or full * scale > 1 + 1e-6 or not math.isfinite(full):
            raise DataError(
                f"colour-jitter needs to know what is black and what is white, but the samples of "
                f"'{dataset.name}' go from {dark * scale:g} to {full * scale:g} before normalisation",
                expected="bytes with a normalisation that scales them by 1/255, or numbers from 0 to 1",
            )


def _each(values: torch.Tensor) -> torch.Tensor:
    """One value per picture, for all its pixels."""
    return values.view(-1, 1, 1, 1)


def _grey(pixels: torch.Tensor) -> torch.Tensor:
    """samples × 1 × height × width: the brightness as eyes see it (ITU-R 601)."""
    if pixels.shape[1] == 1:
        return pixels
    weights = torch.tensor([0.299, 0.587, 0.114], device=pixels.device).view(1, 3, 1, 1)
    return (pixels * weights).sum(dim=1, keepdim=True)
