"""Losses as signals: measured on request under the global model, or a by-product of local training."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.signals._evaluation import EVALUATION_BATCH, evaluated
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.training.context import ClientContext, Trainings, TrainOutcome
from muster.training.objectives import Classification, Objective


@torch.no_grad()
def mean_loss(
    module: nn.Module,
    features: torch.Tensor,
    labels: torch.Tensor,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
) -> float:
    """Mean loss in evaluation mode. The module's tensors stay as they are."""
    module.eval()
    total = 0.0
    for start in range(0, len(labels), EVALUATION_BATCH):
        part = slice(start, start + EVALUATION_BATCH)
        total += float(objective.total_loss(module(features[part]), labels[part]))
    return total / len(labels)


class MeanLoss(Signal):
    """The mean loss of the global model on some of the local data: many clients can be measured in one pass."""

    uses_model: ClassVar[bool] = True
    ranks: ClassVar[bool] = True

    def allowed(self, population: Population) -> Range:
        return _allowed(population)

    @abstractmethod
    def chosen(self, size: int, batch_size: int, rng: np.random.Generator) -> Ints | None:
        """Positions of the samples among the client's; None: all of them."""

    def measure(self, client: ClientContext) -> Floats:
        positions = self.chosen(client.size, client.training.batch_size, client.rng)
        if positions is None:
            return np.array([evaluated(client).loss])
        index = torch.from_numpy(positions).to(client.labels.device)
        chosen = client.features[index], client.labels[index]
        return np.array([mean_loss(client.model.module, *chosen, client.objective)])


@torch.no_grad()
def mean_losses(module: nn.Module, features: torch.Tensor, labels: torch.Tensor, sizes: Ints) -> Floats:
    """The mean losses of several clients, whose samples follow each other, in as few passes as for one."""
    module.eval()
    parts = [slice(start, start + EVALUATION_BATCH) for start in range(0, len(labels), EVALUATION_BATCH)]
    each = torch.cat(
        [nn.functional.cross_entropy(module(features[part]), labels[part], reduction="none") for part in parts]
    )
    starts = np.cumsum(sizes) - sizes
    return np.add.reduceat(each.double().numpy(), starts) / sizes


@signals.register("loss")
@dataclass(frozen=True)
class Loss(MeanLoss):
    """Mean loss of the global model on all local data."""

    name: ClassVar[str] = "loss"
    discloses: ClassVar[str] = "how badly the global model fits the client's data (one number)"
    draws: ClassVar[bool] = False
    evaluates: ClassVar[bool] = True

    def chosen(self, size: int, batch_size: int, rng: np.random.Generator) -> Ints | None:
        return None


@signals.register("batch_loss")
@dataclass(frozen=True)
class BatchLoss(MeanLoss):
    """Mean loss of the global model on one fresh mini-batch of local data."""

    name: ClassVar[str] = "batch_loss"
    discloses: ClassVar[str] = "how badly the global model fits a few of the client's samples (one number)"

    #: Samples in the mini-batch; None: as many as in a training batch.
    batch: int | None = None

    def samples(self, size: int, batch_size: int) -> int:
        return min(size, batch_size if self.batch is None else self.batch)

    def chosen(self, size: int, batch_size: int, rng: np.random.Generator) -> Ints | None:
        return rng.choice(size, size=self.samples(size, batch_size), replace=False)


@signals.register("train_loss")
@dataclass(frozen=True)
class TrainLoss(Signal):
    """Mean loss over the samples of the local training, each before its step."""

    name: ClassVar[str] = "train_loss"
    discloses: ClassVar[str] = "how badly the model fitted the client's data while it trained (one number)"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    ranks: ClassVar[bool] = True

    def allowed(self, population: Population) -> Range:
        return _allowed(population)

    def measure(self, client: ClientContext) -> Floats:
        return np.array([_outcome(self, client).mean_loss])

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        return trainings.mean_loss[:, None]


@signals.register("squared_loss")
@dataclass(frozen=True)
class SquaredLoss(Signal):
    """Mean squared per-sample loss over the first local epoch."""

    name: ClassVar[str] = "squared_loss"
    discloses: ClassVar[str] = "how badly the model fitted the client's data while it trained (one number)"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    needs_squared_loss: ClassVar[bool] = True
    ranks: ClassVar[bool] = True

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        return np.array([_outcome(self, client).mean_squared_loss])

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        return trainings.mean_squared_loss[:, None]


def _allowed(population: Population) -> Range:
    """What a mean loss may be."""
    return Range() if population.negative_losses else NOT_NEGATIVE


def _outcome(signal: Signal, client: ClientContext) -> TrainOutcome:
    if client.outcome is None:
        raise only_after_training(signal)
    return client.outcome


def only_after_training(signal: Signal) -> ConfigError:
    return ConfigError(
        f"the signal '{signal.name}' exists only after training",
        fix="name it in the report of a Train request instead of asking for it",
    )
