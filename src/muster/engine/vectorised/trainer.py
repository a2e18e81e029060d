"""Trains the clients of a slice side by side: step s of all of them is one batched computation.

Every client sees the batches that it would see alone, in the same order, and takes the same steps; only the order
of floating-point operations inside a step may differ. Clients with fewer steps leave early; shorter batches are
padded with samples of weight zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from muster.core.arrays import Floats, Ints
from muster.engine.vectorised.chain import Chain
from muster.engine.vectorised.layers import Batch
from muster.engine.vectorised.optimiser import RowOptimiser
from muster.engine.vectorised.slices import batch_sizes
from muster.engine.vectorised.stack import KeepGradients, Stack, descent
from muster.training.base import LocalTraining

#: Samples by their positions among those of the slice's clients: features and labels.
Fetch = Callable[[Ints], tuple[torch.Tensor, torch.Tensor]]
#: Changes samples: those of the slice's first clients one after the other, how many each has, and the step.
Augment = Callable[[torch.Tensor, Ints, int], torch.Tensor]


@dataclass(frozen=True)
class SliceData:
    """The clients of a slice, in descending order of the steps that they will do."""

    sizes: Ints
    #: Make the order of each client's batches; each is used up before the next one is taken.
    orders: Iterable[np.random.Generator]
    #: Mini-batches of each client that a probe has done.
    skips: Sequence[int]
    fetch: Fetch
    #: For each client, if the model draws random numbers.
    generators: Sequence[torch.Generator] = ()
    #: None: samples stay as they are.
    augment: Augment | None = None


@dataclass(frozen=True)
class Pull:
    """What a local algorithm adds to gradients: μ (w − w_global) + shift."""

    #: Of all clients, or clients × 1.
    mu: float | torch.Tensor = 0.0
    #: clients × trained numbers.
    shift: torch.Tensor | None = None

    @property
    def is_none(self) -> bool:
        return isinstance(self.mu, float) and self.mu == 0 and self.shift is None


@dataclass(frozen=True)
class Outcomes:
    """By-products of the training, one number per client."""

    steps: Ints
    samples: Ints
    mean_loss: Floats
    #: Over the first epoch.
    mean_squared_loss: Floats


@dataclass(frozen=True)
class Timetable:
    """Which samples each client uses in which step."""

    #: steps × clients × batch: positions in the cohort's samples.
    positions: Ints
    #: steps × clients: samples of the batch; 0 after a client's last step.
    sizes: Ints

    @classmethod
    def of(cls, cohort: SliceData, training: LocalTraining) -> Timetable:
        starts = np.cumsum(cohort.sizes) - cohort.sizes
        steps = [
            batch_sizes(size, training)[skip:]
            for size, skip in zip(cohort.sizes.tolist(), cohort.skips, strict=True)
        ]
        widest = min(training.batch_size, int(cohort.sizes.max()))
        # Padding repeats the client's first sample: with a weight of zero it does nothing.
        positions = np.tile(starts[:, None], (max(map(len, steps)), 1, widest))
        sizes = np.zeros(positions.shape[:2], dtype=np.int64)
        numbered = enumerate(zip(cohort.sizes.tolist(), steps, cohort.skips, cohort.orders, strict=True))
        for client, (size, own, skip, rng) in numbered:
            sizes[: len(own), client] = own
            positions[: len(own), client] += _all_batches(size, training, rng)[skip:, :widest]
        return cls(positions, sizes)


def _all_batches(size: int, training: LocalTraining, rng: np.random.Generator) -> Ints:
    """steps × batch size: the positions that `muster.training.base.batches` gives, filled up with zeros."""
    total, epoch, used = training.steps_for(size), training.epoch_for(size), training.epoch_samples(size)
    table = np.zeros((math.ceil(total / epoch), epoch * training.batch_size), dtype=np.int64)
    for row in table:
        row[:used] = rng.permutation(size)[:used]
    return table.reshape(-1, training.batch_size)[:total]


def train_slice(
    chain: Chain,
    cohort: SliceData,
    training: LocalTraining,
    stack: Stack,
    *,
    lr: float | torch.Tensor,
    pull: Pull,
    velocity: torch.Tensor | None = None,
    losses: Literal["none", "mean", "squared"] = "none",
) -> Outcomes:
    """Train all clients, in place: row k of the stack is client k's, before and after.

    `lr`: of all clients, or clients × 1. `velocity`: what SGD's momentum starts with; None: zero. `losses`: which
    by-products are wanted; the others are not a number.
    """
    timetable = Timetable.of(cohort, training)
    stepper = _Descent(chain, training, lr, stack, pull=pull, velocity=velocity)
    samples = _Samples(cohort, timetable, once=training.steps is None and training.epochs == 1)
    tally = _Tally(timetable, cohort.sizes, losses)
    for step, sizes in enumerate(timetable.sizes):
        active, widest = int(np.count_nonzero(sizes)), int(sizes.max())
        stepper.narrow(active)
        features, labels = samples.of(step, active, widest)
        if cohort.augment is not None:
            features = _augmented(features, sizes[:active], step, cohort.augment)
        batch = _batch(sizes[:active], widest, cohort.generators)
        logs = stepper.step(features, labels, batch)
        tally.add(step, logs, labels, batch)
    return tally.outcomes()


class _Samples:
    """The samples of each step: taken out in the order of their use, or once and then rearranged step by step."""

    def __init__(self, cohort: SliceData, timetable: Timetable, once: bool) -> None:
        self._once, self._shape = once, timetable.positions.shape
        if once:
            self._features, self._labels = cohort.fetch(timetable.positions.reshape(-1))
            self._features = self._features.view(*self._shape, *self._features.shape[1:])
            self._labels = self._labels.view(*self._shape, 1)
        else:
            self._features, self._labels = cohort.fetch(np.arange(cohort.sizes.sum()))
            self._positions = torch.from_numpy(timetable.positions)

    def of(self, step: int, active: int, widest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """active clients × widest × the shape of a sample, and the labels with an axis for the class."""
        if self._once:
            part = (step, slice(active), slice(widest))
            return self._features[part].contiguous(), self._labels[part].contiguous()
        chosen = self._positions[step, :active, :widest].reshape(-1)
        features = self._features.index_select(0, chosen)
        labels = self._labels.index_select(0, chosen)
        return features.view(active, widest, *features.shape[1:]), labels.view(active, widest, 1)


def _augmented(features: torch.Tensor, sizes: Ints, step: int, augment: Augment) -> torch.Tensor:
    """A step's samples (clients × widest × …), changed; padding stays what it is."""
    if sizes.min() == features.shape[1]:
        return augment(features.flatten(0, 1), sizes, step).view(features.shape)
    real = torch.from_numpy(np.arange(features.shape[1]) < sizes[:, None])
    features[real] = augment(features[real], sizes, step)
    return features


def _batch(sizes: Ints, widest: int, generators: Sequence[torch.Generator]) -> Batch:
    mask = None
    if sizes.min() < widest:
        mask = torch.from_numpy((np.arange(widest) < sizes[:, None]).astype(np.float32))
    return Batch(sizes.tolist(), mask, generators)


class _Descent:
    """Steps of the clients that are active."""

    def __init__(
        self,
        chain: Chain,
        training: LocalTraining,
        lr: float | torch.Tensor,
        stack: Stack,
        *,
        pull: Pull,
        velocity: torch.Tensor | None,
    ) -> None:
        self._chain, self._training, self._stack, self._pull = chain, training, stack, pull
        self._optimiser = None if stack.gradients is None else RowOptimiser(training, lr, stack.values, velocity)
        self._update = descent(lr, training.weight_decay) if stack.gradients is None else KeepGradients()

    def narrow(self, active: int) -> None:
        """Only the first `active` clients continue."""
        if active == self._stack.active:
            return
        self._stack.active = active
        self._chain.bind(self._stack)
        if self._optimiser is not None:
            self._optimiser.narrow(active)

    def step(self, features: torch.Tensor, labels: torch.Tensor, batch: Batch) -> torch.Tensor:
        """One step on one mini-batch of each client; the logarithms of the classes' probabilities before it."""
        logs = torch.log_softmax(self._chain.forward(features, batch), dim=2)
        gradient = logs.exp()
        gradient.scatter_add_(2, labels, _MINUS_ONE.expand(labels.shape))
        if batch.mask is None:
            gradient.div_(batch.sizes[0])
        else:
            gradient.mul_((batch.mask / batch.mask.sum(dim=1, keepdim=True)).unsqueeze(2))
        self._chain.backward(gradient, self._update)
        if self._optimiser is not None:
            self._optimise(self._optimiser)
        return logs

    def _optimise(self, optimiser: RowOptimiser) -> None:
        active, stack, pull = self._stack.active, self._stack, self._pull
        assert stack.gradients is not None
        gradients, values = stack.gradients[:active], stack.values[:active]
        # The difference first: it is exactly zero before the first step.
        if isinstance(pull.mu, torch.Tensor):
            gradients.addcmul_(values - stack.layout.gather(stack.origin), pull.mu[:active])
        elif pull.mu:
            gradients.add_(values - stack.layout.gather(stack.origin), alpha=pull.mu)
        if pull.shift is not None:
            gradients.add_(pull.shift[:active])
        if self._training.clip_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._training.clip_norm / (norms + 1e-6)).clamp_max(1.0))
        optimiser.step(gradients)


_MINUS_ONE = torch.tensor(-1.0)


def needs_gradients(training: LocalTraining, pull: Pull) -> bool:
    """Whether steps need more than plain descent."""
    plain = training.optimizer == "sgd" and not training.momentum and training.clip_norm is None
    return not (plain and pull.is_none)


class _Tally:
    """Sums of losses in float64; of squared ones over the batches that lie in a client's first epoch."""

    def __init__(self, timetable: Timetable, sizes: Ints, wanted: str) -> None:
        self._sizes, self._wanted = timetable.sizes, wanted
        self._total, self._squares = torch.zeros((2, len(sizes)), dtype=torch.float64)
        if wanted == "squared":
            self._early = torch.from_numpy(np.cumsum(timetable.sizes, axis=0) <= sizes)

    def add(self, step: int, logs: torch.Tensor, labels: torch.Tensor, batch: Batch) -> None:
        if self._wanted == "none":
            return
        losses = logs.gather(2, labels).squeeze(2).double().neg_()
        if batch.mask is not None:
            losses = torch.where(batch.mask > 0, losses, 0.0)
        self._total[: len(losses)] += losses.sum(dim=1)
        if self._wanted == "squared":
            early = self._early[step, : len(losses)]
            self._squares[: len(losses)] += torch.where(early, losses.square().sum(dim=1), 0.0)

    def outcomes(self) -> Outcomes:
        samples = self._sizes.sum(axis=0)
        mean = squared = np.full(len(samples), np.nan)
        if self._wanted != "none":
            mean = _ratio(self._total, samples)
        if self._wanted == "squared":
            squared = _ratio(self._squares, (self._sizes * self._early.numpy()).sum(axis=0))
        return Outcomes(np.count_nonzero(self._sizes, axis=0), samples, mean, squared)


def _ratio(total: torch.Tensor, count: Ints) -> Floats:
    """NaN where nothing was counted."""
    ratio: Floats = np.divide(total.numpy(), count, out=np.full(len(count), np.nan), where=count > 0)
    return ratio
