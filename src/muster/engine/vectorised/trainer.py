"""Trains the clients of a slice side by side: step s of all of them is one batched computation.

Every client sees the batches that it would see alone, in the same order, and takes the same steps; only the order
of floating-point operations inside a step may differ. Clients with fewer steps leave early; shorter batches are
padded with samples of weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from muster.arrays import Floats, Ints
from muster.engine.vectorised.chain import Chain
from muster.engine.vectorised.layers import Batch
from muster.engine.vectorised.stack import Descend, Stack, Store
from muster.training.base import LocalTraining, batches


@dataclass(frozen=True)
class Cohort:
    """The clients of a slice and their data, in descending order of the steps that they will do."""

    #: All samples, client after client.
    features: torch.Tensor
    labels: torch.Tensor
    sizes: Ints
    #: Make the order of each client's batches.
    orders: Sequence[np.random.Generator]
    #: Mini-batches of each client that a probe has done.
    skips: Sequence[int]
    #: For each client, if the model draws random numbers.
    generators: Sequence[torch.Generator] = ()


@dataclass(frozen=True)
class Pull:
    """What a local algorithm adds to gradients: μ (w − w_global) + shift."""

    mu: float = 0.0
    #: clients × trained numbers.
    shift: torch.Tensor | None = None
    #: Of the same shape: gradients are summed up in it before they are changed.
    sums: torch.Tensor | None = None

    @property
    def is_none(self) -> bool:
        return self.mu == 0 and self.shift is None and self.sums is None


@dataclass(frozen=True)
class Outcomes:
    """By-products of the training, one number a client."""

    steps: Ints
    samples: Ints
    mean_loss: Floats
    #: Over the first epoch; NaN when nobody asked.
    mean_squared_loss: Floats


@dataclass(frozen=True)
class Timetable:
    """Which samples each client uses in which step."""

    #: steps × clients × batch: positions in the cohort's samples.
    positions: Ints
    #: steps × clients: samples of the batch; 0 after a client's last step.
    sizes: Ints

    @classmethod
    def of(cls, cohort: Cohort, training: LocalTraining) -> Timetable:
        plans = [
            list(batches(size, training, rng, skip))
            for size, rng, skip in zip(cohort.sizes.tolist(), cohort.orders, cohort.skips, strict=True)
        ]
        starts = np.cumsum(cohort.sizes) - cohort.sizes
        steps, widest = max(map(len, plans)), min(training.batch_size, int(cohort.sizes.max()))
        # Padding repeats the client's first sample: with a weight of zero it does nothing.
        positions = np.tile(starts[:, None], (steps, 1, widest))
        sizes = np.zeros((steps, len(plans)), dtype=np.int64)
        for client, plan in enumerate(plans):
            for step, chosen in enumerate(plan):
                positions[step, client, : len(chosen)] += chosen
                sizes[step, client] = len(chosen)
        return cls(positions, sizes)


def train_slice(
    chain: Chain,
    cohort: Cohort,
    training: LocalTraining,
    stack: Stack,
    *,
    lr: float,
    pull: Pull,
    squared: bool = False,
) -> Outcomes:
    """Train all clients, in place: row k of the stack is client k's, before and after."""
    timetable = Timetable.of(cohort, training)
    descent = _Descent(chain, training, lr, stack, pull)
    positions, losses = torch.from_numpy(timetable.positions), []
    for step, sizes in enumerate(timetable.sizes):
        active, widest = int(np.count_nonzero(sizes)), int(sizes.max())
        descent.narrow(active)
        chosen = positions[step, :active, :widest]
        flat = chosen.reshape(-1)
        features = cohort.features.index_select(0, flat)
        labels = cohort.labels.index_select(0, flat).view(active, widest, 1)
        batch = _batch(sizes[:active], widest, cohort.generators)
        losses.append(descent.step(features.view(active, widest, *features.shape[1:]), labels, batch))
    return _outcomes(timetable, losses, cohort.sizes, squared)


def _batch(sizes: Ints, widest: int, generators: Sequence[torch.Generator]) -> Batch:
    mask = None
    if sizes.min() < widest:
        mask = torch.from_numpy((np.arange(widest) < sizes[:, None]).astype(np.float32))
    return Batch(sizes.tolist(), mask, generators)


class _Descent:
    """Steps of the clients that are active."""

    def __init__(self, chain: Chain, training: LocalTraining, lr: float, stack: Stack, pull: Pull) -> None:
        self._chain, self._training, self._lr, self._stack, self._pull = chain, training, lr, stack, pull
        self._optimizer: torch.optim.Optimizer | None = None
        self._parameter: nn.Parameter | None = None
        self._plain = stack.gradients is None
        self._update = Descend(lr, training.weight_decay) if self._plain else Store()

    def narrow(self, active: int) -> None:
        """Only the first `active` clients go on."""
        if active == self._stack.active:
            return
        self._stack.active = active
        self._chain.bind(self._stack)
        if self._plain:
            return
        before, parameter = self._optimizer, nn.Parameter(self._stack.values[:active])
        self._optimizer = self._training.make_optimizer([parameter], self._lr)
        if before is not None and self._parameter is not None:
            kept = before.state[self._parameter].items()
            self._optimizer.state[parameter] = {
                name: value[:active] if torch.is_tensor(value) and value.dim() else value for name, value in kept
            }
        self._parameter = parameter

    def step(self, features: torch.Tensor, labels: torch.Tensor, batch: Batch) -> torch.Tensor:
        """One step on one mini-batch of each client; the losses of its samples before it."""
        logits = self._chain.forward(features, batch)
        logs = torch.log_softmax(logits, dim=2)
        losses = -logs.gather(2, labels).squeeze(2)
        gradient = logs.exp_()
        gradient.scatter_add_(2, labels, _MINUS_ONE.expand(labels.shape))
        if batch.mask is None:
            gradient.div_(batch.sizes[0])
        else:
            gradient.mul_((batch.mask / batch.mask.sum(dim=1, keepdim=True)).unsqueeze(2))
        self._chain.backward(gradient, self._update)
        if not self._plain:
            self._optimise()
        return losses

    def _optimise(self) -> None:
        active, stack, pull = self._stack.active, self._stack, self._pull
        assert stack.gradients is not None
        assert self._parameter is not None
        assert self._optimizer is not None
        gradients, values = stack.gradients[:active], stack.values[:active]
        if pull.sums is not None:
            pull.sums[:active] += gradients
        if pull.mu:
            # The difference first: it is exactly zero before the first step.
            gradients.add_(values - stack.layout.gather(stack.origin), alpha=pull.mu)
        if pull.shift is not None:
            gradients.add_(pull.shift[:active])
        if self._training.clip_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._training.clip_norm / (norms + 1e-6)).clamp_max(1.0))
        self._parameter.grad = gradients
        self._optimizer.step()


_MINUS_ONE = torch.tensor(-1.0)


def needs_gradients(training: LocalTraining, pull: Pull) -> bool:
    """Whether steps need more than plain descent."""
    plain = training.optimizer == "sgd" and not training.momentum and training.clip_norm is None
    return not (plain and pull.is_none)


def _outcomes(timetable: Timetable, losses: list[torch.Tensor], sizes: Ints, squared: bool) -> Outcomes:
    """Sums over samples in float64; squares over the batches that lie in the client's first epoch."""
    done = np.cumsum(timetable.sizes, axis=0)
    clients = np.arange(timetable.sizes.shape[1])
    total, squares, counted = np.zeros((3, len(clients)))
    for own, up_to, tensor in zip(timetable.sizes, done, losses, strict=True):
        each = tensor.double().numpy()
        active, widest = each.shape
        each = np.where(np.arange(widest) < own[:active, None], each, 0.0)
        total[:active] += each.sum(axis=1)
        if squared:
            early = (up_to <= sizes)[:active]
            squares[:active] += np.where(early, np.square(each).sum(axis=1), 0.0)
            counted[:active] += np.where(early, own[:active], 0)
    samples = timetable.sizes.sum(axis=0)
    return Outcomes(
        steps=np.count_nonzero(timetable.sizes, axis=0),
        samples=samples,
        mean_loss=np.divide(total, samples, out=np.full(len(clients), np.nan), where=samples > 0),
        mean_squared_loss=np.divide(squares, counted, out=np.full(len(clients), np.nan), where=counted > 0),
    )
