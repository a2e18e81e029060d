"""FedNova: movements normalised by the amount of local work (Wang et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.aggregation.base import aggregators, running_sum
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedavgm import velocity
from muster.core.arrays import Floats, Vector
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.signals.base import Signal
from muster.signals.progress import LocalProgress
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.updates.table import Updates


@aggregators.register("fednova")
@dataclass
class FedNova(FedAvg):
    """Mean of the movements per unit of local work, times the mean amount of work.

    A client that makes more local steps pulls further; a plain mean then optimises an objective other than the
    weighted sum of the clients' losses. A step with twice the learning rate is twice the work. Clients that made
    no step are refused.
    """

    #: What the mean amount of work is made of: the normalisers, or the numbers of steps (the authors' code does
    #: the latter when clients use a proximal term).
    effective: Literal["normalisers", "steps"] = "normalisers"
    #: "average" divides by the sum of all coefficients, as two public implementations do by accident: the step is
    #: then as long as the harmonic instead of the arithmetic mean of the work. For reproducing their numbers.
    normalise: Literal["sum", "average"] = "sum"
    #: Momentum of the server on the resulting step.
    momentum: float = 0.0

    velocity: Floats = state(lambda: np.zeros(0))

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("momentum", 0 <= self.momentum < 1, "at least 0, below 1")

    def cautions(self, population: Population) -> list[str]:
        plain = self.effective == "normalisers" and self.normalise == "sum" and not self.momentum
        if plain and len(np.unique(population.sizes)) == 1:
            return ["fednova is fedavg here: all clients have equally many samples, hence equal work"]
        return super().cautions(population)

    def reports(self) -> tuple[Signal, ...]:
        return (LocalProgress(),)

    def check_training(self, training: LocalTraining, algorithm: LocalAlgorithm) -> None:
        training.check_accumulates("fednova")
        if training.momentum and algorithm.continues_optimiser:
            raise ConfigError(
                "fednova divides movements by how often this training's gradients are in them, but the clients' "
                "momentum continues from their last training",
                fix="set method = 'plain' in the section [algorithm], or training.momentum = 0",
            )

    def objections(self, updates: Updates) -> dict[int, str]:
        work = updates.report(LocalProgress.name)
        unusable = np.flatnonzero(~((work > 0) & (work < np.inf)))
        return {row: f"fednova cannot divide by its local work of {work[row]:g}" for row in unusable.tolist()}

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        self._work = self._inverse_work = self._total = 0.0
        self._rate: float | None = None

    def scale(self, updates: Updates) -> Floats:
        return 1.0 / self._work_of(updates)

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        work = updates.steps * self._rates(updates) if self.effective == "steps" else self._work_of(updates)
        self._inverse_work = running_sum(self._inverse_work, coefficients)
        self._work = running_sum(self._work, weights * work)
        self._total = running_sum(self._total, weights)

    def step(self, mean: Floats) -> Floats:
        work = self._work / self._total if self.normalise == "sum" else self._total / self._inverse_work
        mean *= work
        if self.momentum == 0:
            return mean
        self.velocity = velocity(self.velocity, mean, self.momentum)
        return self.velocity

    def _work_of(self, updates: Updates) -> Floats:
        """In steps with the round's learning rate."""
        return self._rates(updates) * updates.report(LocalProgress.name)

    def _rates(self, updates: Updates) -> Floats:
        """Learning rates in units of one round's; of the first answer's, where late ones come from several."""
        of_round = updates.lr / updates.lr_factors
        if self._rate is None:
            self._rate = float(of_round[0])
        quotient = of_round / self._rate
        # The same rate, up to the rounding of rate · factor ÷ factor; or not known.
        same = np.isclose(quotient, 1.0, rtol=1e-12, atol=0.0) | ~np.isfinite(quotient)
        return updates.lr_factors * np.where(same, 1.0, quotient)
