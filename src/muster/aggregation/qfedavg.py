"""q-FedAvg: clients with high loss count more (q-FFL; Li et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import norms
from muster.aggregation.base import MeanAggregator, aggregators, running_sum
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.signals.base import Signal
from muster.signals.start_loss import StartLoss
from muster.updates.table import Updates

#: Losses are not taken below this: F^(q−1) has no value at zero for q < 1.
SMALLEST_LOSS = 1e-10
#: A loss above this is that of a model that diverged, not a measure of how unfairly a client is treated.
LARGEST_LOSS = 1e10
#: Powers of losses up to this can be multiplied by squared movements and summed.
LARGEST_POWER = 1e150


@aggregators.register("qfedavg")
@dataclass
class QFedAvg(MeanAggregator):
    """Minimises Σ F_k^(q+1)/(q+1): the larger q, the more the clients with high loss count.

    The step length follows from an estimate of the local Lipschitz constants of that objective, so that no other
    learning rate has to be tuned for every q.
    """

    #: Fairness: 0 is the plain mean with equal weights.
    q: float = 1.0
    #: Lipschitz constant L of the losses' gradients; None: 1 / local learning rate.
    lipschitz: float | None = None

    honours_weights: ClassVar[bool] = False
    not_stale: ClassVar[str] = (
        "its weights compare losses of one model, and the loss of an older one is higher because it is older"
    )

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("q", self.q >= 0, "zero or a positive number")
        self.require("lipschitz", self.lipschitz is None or self.lipschitz > 0, "a positive number")

    def cautions(self, population: Population) -> list[str]:
        if self.q == 0:
            return ["qfedavg is fedavg with equal weights here: q is 0"]
        return super().cautions(population)

    def reports(self) -> tuple[Signal, ...]:
        return (StartLoss(),)

    def objections(self, updates: Updates) -> dict[int, str]:
        losses = updates.report(StartLoss.name)
        powers = self.q * np.log10(np.clip(losses, SMALLEST_LOSS, LARGEST_LOSS))
        usable = (losses <= LARGEST_LOSS) & (powers <= math.log10(LARGEST_POWER))
        return {
            row: f"qfedavg cannot weight its loss of {losses[row]:g} (q = {self.q:g})"
            for row in np.flatnonzero(~usable).tolist()
        }

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        self._curvature = self._total = 0.0

    def weight(self, updates: Updates) -> Floats:
        powers: Floats = _losses(updates) ** self.q
        return powers

    def scale(self, updates: Updates) -> Floats:
        # A client's gradient is its movement divided by its own learning rate.
        return 1.0 / updates.lr_factors if self.lipschitz is None else np.ones(len(updates))

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        # Who had no rate (the last round of a schedule that ends with zero) has not moved, and adds no curvature.
        rates = np.where(updates.lr == 0, np.inf, updates.lr)
        lipschitz = 1 / rates if self.lipschitz is None else np.full(len(updates), self.lipschitz)
        if not np.isfinite(lipschitz).all():
            wrong = updates.lr[~np.isfinite(lipschitz)][0]
            raise ConfigError(
                f"qfedavg: the local learning rate is {wrong}", fix="give the option `lipschitz` of qfedavg"
            )
        squares = norms(updates.movements[:, self._spec.trainable]) ** 2
        # Both sums of the paper divided by the round's L: movements take the place of gradients L·(w − w_k).
        steepness = self.q * _losses(updates) ** (self.q - 1) * lipschitz * squares * self.scale(updates)
        self._curvature = running_sum(self._curvature, updates.multiplicity * steepness + coefficients)
        self._total = running_sum(self._total, weights)

    def step(self, mean: Floats) -> Floats:
        mean *= self._total / self._curvature
        return mean


def _losses(updates: Updates) -> Floats:
    return np.maximum(updates.report(StartLoss.name), SMALLEST_LOSS)
