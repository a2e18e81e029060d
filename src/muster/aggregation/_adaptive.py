"""What FedAdam, FedYogi and FedAdagrad share: an adaptive step on the server (Reddi et al., 2021)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats
from muster.core.component import Population, state


def adaptive_step(first: Floats, second: Floats, tau: float) -> Floats:
    """First moment over the root of the second; τ keeps coordinates that do not move at rest."""
    return first / (np.sqrt(second) + tau)


@dataclass
class AdaptiveAggregator(FedAvg):
    """Scales the server's step in each coordinate by how much this coordinate has moved so far.

    The mean movement takes the place of a negative gradient. Only trainable parameters take part.
    """

    server_lr: float = 0.1
    #: Share of the first moment that is kept.
    beta1: float = 0.9
    #: Degree of adaptivity: coordinates that move much less than this are not scaled up any further.
    tau: float = 1e-3
    #: The second moment before the first round: zero, or τ² as the analysis asks for.
    v0: Literal["zero", "tau2"] = "zero"

    first: Floats = state(lambda: np.zeros(0))
    second: Floats = state(lambda: np.zeros(0))
    #: Steps done.
    done: int = state(int)

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("beta1", 0 <= self.beta1 < 1, "at least 0, below 1")
        self.require("tau", self.tau > 0, "a positive number (a coordinate that never moved would give 0/0)")

    @abstractmethod
    def next_second(self, second: Floats, square: Floats) -> Floats:
        """The next second moment from the square of the mean movement."""

    def correction(self) -> float:
        """Factor of the step that corrects for moments starting at zero."""
        return 1.0

    def step(self, mean: Floats) -> Floats:
        if self.done == 0:
            self.first = np.zeros_like(mean)
            self.second = np.full_like(mean, self.tau**2 if self.v0 == "tau2" else 0.0)
        self.first = self.beta1 * self.first + (1 - self.beta1) * mean
        self.second = self.next_second(self.second, np.square(mean))
        self.done += 1
        return self.correction() * adaptive_step(self.first, self.second, self.tau)
