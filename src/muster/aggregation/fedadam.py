"""FedAdam: Adam on the server (Reddi et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from muster.aggregation._adaptive import AdaptiveAggregator
from muster.aggregation.base import aggregators
from muster.core.arrays import Floats
from muster.core.component import Population


@aggregators.register("fedadam")
@dataclass
class FedAdam(AdaptiveAggregator):
    """Adam on the server: steps scaled by a fading mean of squared movements."""

    beta2: float = 0.99
    #: None as in the paper; "flower" multiplies the step by √(1−β₂^(r+1))/(1−β₁^(r+1)) in round r = 1, 2, ….
    bias_correction: Literal["none", "flower"] = "none"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("beta2", 0 <= self.beta2 < 1, "at least 0, below 1")

    def next_second(self, second: Floats, square: Floats) -> Floats:
        return self.beta2 * second + (1 - self.beta2) * square

    def correction(self) -> float:
        if self.bias_correction == "none":
            return 1.0
        power = self.done + 1
        return math.sqrt(1 - self.beta2**power) / (1 - self.beta1**power)
