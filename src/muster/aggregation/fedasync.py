"""FedAsync: the server mixes a client's model into its own (Xie et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import accumulate
from muster.aggregation.base import StaleUse, aggregators
from muster.aggregation.fedbuff import FedBuff
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


@aggregators.register("fedasync")
@dataclass
class FedAsync(FedBuff):
    """w ← (1 − α s(τ)) w + α s(τ) w_k: models are mixed, not movements added. `server_lr` is α.

    Meant for one answer at a time (`buffered` with k = 1). Of several, their mean is mixed in.
    """

    server_lr: float = 0.6

    stale: ClassVar[StaleUse | None] = "models"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("server_lr", self.server_lr <= 1, "α, above 0 and at most 1: a share of the client's model")

    @property
    def _without_age(self) -> str:
        return f"{super()._without_age} and server_lr = {self.server_lr:g}"

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        #: Apart from the movements, so that a stream and a matrix add in the same order.
        self._behind = np.zeros(spec.trainable.stop)

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        super().noted(updates, weights, coefficients)
        drifts, which = updates.drift_rows(self._spec.trainable)
        for row in np.flatnonzero(which >= 0).tolist():
            at = which[row]
            accumulate(self._behind, drifts[at : at + 1], coefficients[row : row + 1])

    def step(self, mean: Floats) -> Floats:
        self._behind /= self._discounted
        mean += self._behind
        return super().step(mean)
