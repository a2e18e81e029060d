"""Gradients: asked for at the global model, or averaged over a local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.signals._evaluation import EVALUATION_BATCH
from muster.signals.base import Range, Signal, signals
from muster.signals.losses import only_after_training
from muster.signals.updates import moved
from muster.training.context import ClientContext, Trainings

Part = Literal["all", "final_layer"]


def _part(part: Part, spec: ParameterSpec) -> slice:
    return spec.final_layer if part == "final_layer" else spec.trainable


@signals.register("gradient")
@dataclass(frozen=True)
class Gradient(Signal):
    """Gradient of the mean loss over all local data at the global model."""

    name: ClassVar[str] = "gradient"
    discloses: ClassVar[str] = "the gradient on the client's data: as much as one step of training"
    draws: ClassVar[bool] = False
    uses_model: ClassVar[bool] = True
    reveals_update: ClassVar[bool] = True

    #: All trainable parameters, or the classification layer's.
    part: Part = "all"

    def width(self, population: Population) -> int:
        part = _part(self.part, population.spec)
        return int(part.stop - part.start)

    def measure(self, client: ClientContext) -> Floats:
        module = client.model.module
        module.eval()
        module.zero_grad(set_to_none=True)
        for start in range(0, client.size, EVALUATION_BATCH):
            chunk = slice(start, start + EVALUATION_BATCH)
            logits = module(client.features[chunk])
            total = client.objective.total_loss(logits, client.labels[chunk])
            (total / client.size).backward()  # type: ignore[no-untyped-call]
        flat = torch.cat([_gradient(module.get_parameter(entry.name)) for entry in client.spec.parameters])
        module.zero_grad(set_to_none=True)
        return flat[_part(self.part, client.spec)].double().cpu().numpy()


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).reshape(-1)


@signals.register("mean_gradient")
@dataclass(frozen=True)
class MeanGradient(Signal):
    """The gradient that would have moved the model as far in as many steps of plain gradient descent.

    NaN after a training with the rate 0 (the last of a schedule that ends with zero), which says nothing about it.
    """

    name: ClassVar[str] = "mean_gradient"
    discloses: ClassVar[str] = "nothing beyond the model update and the number of local steps"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    in_update: ClassVar[bool] = True
    reveals_update: ClassVar[bool] = True

    #: All trainable parameters, or the classification layer's.
    part: Part = "all"

    def width(self, population: Population) -> int:
        part = _part(self.part, population.spec)
        return int(part.stop - part.start)

    def allowed(self, population: Population) -> Range:
        return Range(may_be_missing=True)

    def measure(self, client: ClientContext) -> Floats:
        if client.outcome is None:
            raise only_after_training(self)
        movement = moved(self, client, _part(self.part, client.spec))
        return _per_way(movement[None], np.array([client.lr * max(1, client.outcome.steps)])).ravel()

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        movements = trainings.movements[:, _part(self.part, trainings.spec)].astype(np.float64)
        return _per_way(movements, trainings.lr * np.maximum(1, trainings.steps))


def _per_way(movements: Floats, ways: Floats) -> Floats:
    """Minus each row divided by its way; NaN where that is zero."""
    return -movements / np.where(ways > 0, ways, np.nan)[:, None]
