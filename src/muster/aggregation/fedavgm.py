"""FedAvgM: the mean movement feeds a velocity on the server (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.aggregation.base import aggregators
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats
from muster.core.component import Population, state


def velocity(previous: Floats, mean: Floats, momentum: float) -> Floats:
    """The next velocity: the mean movement on top of the slowed-down previous one. Nothing is damped by 1 − β."""
    return mean.copy() if len(previous) == 0 else momentum * previous + mean


@aggregators.register("fedavgm")
@dataclass
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server."""

    #: Share of the velocity that is kept; with 0 it is FedAvg, with β the long-run step is 1/(1 − β) means.
    momentum: float = 0.9
    velocity: Floats = state(lambda: np.zeros(0))

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("momentum", 0 <= self.momentum < 1, "at least 0, below 1")

    def cautions(self, population: Population) -> list[str]:
        return ["fedavgm is fedavg here: momentum is 0"] if self.momentum == 0 else super().cautions(population)

    def step(self, mean: Floats) -> Floats:
        self.velocity = velocity(self.velocity, mean, self.momentum)
        return self.velocity
