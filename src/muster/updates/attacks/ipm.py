"""Inner-product manipulation: the mean points backwards (IPM; Xie et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.updates.attacks.base import Collusion
from muster.updates.filters import filters


@filters.register("ipm")
@dataclass(frozen=True)
class InnerProductManipulation(Collusion):
    """Attack: all attackers send the negated honest mean, a little (hard to detect) or a lot."""

    #: ε: length relative to the honest mean.
    epsilon: float = 0.5

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("epsilon", 0 < self.epsilon < np.inf, "a positive number")

    def crafted(self, honest: Floats, attackers: int, rng: np.random.Generator) -> Floats:
        return np.asarray(-self.epsilon * honest.mean(axis=0))
