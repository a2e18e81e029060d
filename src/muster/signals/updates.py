"""Parts and norms of the update that a client sends anyway: they cost no bytes and disclose nothing more."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.signals.losses import only_after_training
from muster.training.context import ClientContext, Trainings


class PartOfUpdate(Signal):
    """A slice of the movement, as it is."""

    discloses: ClassVar[str] = "nothing beyond the model update"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    in_update: ClassVar[bool] = True
    reveals_update: ClassVar[bool] = True

    @abstractmethod
    def part(self, spec: ParameterSpec) -> slice:
        """Where it lies in the flat vector; ConfigError when the model has no such part."""

    def width(self, population: Population) -> int:
        part = self.part(population.spec)
        return int(part.stop - part.start)

    def unavailable(self, population: Population) -> str | None:
        try:
            self.part(population.spec)
        except ConfigError as error:
            return error.problem
        return None

    def measure(self, client: ClientContext) -> Floats:
        return moved(self, client, self.part(client.spec))

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        return trainings.movements[:, self.part(trainings.spec)].astype(np.float64)


class NormOfPart(PartOfUpdate):
    """The Euclidean norm of a slice of the movement."""

    ranks: ClassVar[bool] = True

    def width(self, population: Population) -> int:
        return 1

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        return np.array([np.linalg.norm(super().measure(client))])

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        rows = trainings.movements[:, self.part(trainings.spec)].astype(np.float64)
        return np.asarray(np.linalg.norm(rows, axis=1, keepdims=True))


def moved(signal: Signal, client: ClientContext, part: slice) -> Floats:
    """A slice of the client's movement, in double precision."""
    if client.movement is None:
        raise only_after_training(signal)
    return client.movement[part].astype(np.float64)


def bias_slice(spec: ParameterSpec) -> slice:
    if spec.final_bias is None:
        raise ConfigError(
            "the model's classification layer has no bias", fix="use a model whose last layer has one"
        )
    return spec.final_bias.slice


@signals.register("final_layer_norm")
@dataclass(frozen=True)
class FinalLayerNorm(NormOfPart):
    """Norm of the classification layer's movement, weight and bias together."""

    name: ClassVar[str] = "final_layer_norm"

    def part(self, spec: ParameterSpec) -> slice:
        return spec.final_layer


@signals.register("final_weight_norm")
@dataclass(frozen=True)
class FinalWeightNorm(NormOfPart):
    """Norm of the movement of the classification layer's weight."""

    name: ClassVar[str] = "final_weight_norm"

    def part(self, spec: ParameterSpec) -> slice:
        return spec.final_weight.slice


@signals.register("final_bias_norm")
@dataclass(frozen=True)
class FinalBiasNorm(NormOfPart):
    """Norm of the movement of the classification layer's bias."""

    name: ClassVar[str] = "final_bias_norm"

    def part(self, spec: ParameterSpec) -> slice:
        return bias_slice(spec)


@signals.register("final_layer_update")
@dataclass(frozen=True)
class FinalLayerUpdate(PartOfUpdate):
    """Movement of the classification layer: weight row by row, then bias."""

    name: ClassVar[str] = "final_layer_update"

    def part(self, spec: ParameterSpec) -> slice:
        return spec.final_layer


@signals.register("bias_update")
@dataclass(frozen=True)
class BiasUpdate(PartOfUpdate):
    """Movement of the classification layer's bias: one number per class."""

    name: ClassVar[str] = "bias_update"

    def part(self, spec: ParameterSpec) -> slice:
        return bias_slice(spec)


@signals.register("update")
@dataclass(frozen=True)
class WholeUpdate(PartOfUpdate):
    """Movement of all trainable parameters: no running statistics, no counters."""

    name: ClassVar[str] = "update"

    def part(self, spec: ParameterSpec) -> slice:
        return spec.trainable
