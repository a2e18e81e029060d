"""FedYogi: Yogi on the server (Reddi et al., 2021; Zaheer et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.aggregation._adaptive import AdaptiveAggregator
from muster.aggregation.base import aggregators
from muster.core.arrays import Floats
from muster.core.component import Population


@aggregators.register("fedyogi")
@dataclass
class FedYogi(AdaptiveAggregator):
    """Yogi on the server: like FedAdam, but the second moment changes by bounded amounts."""

    server_lr: float = 0.01
    beta2: float = 0.99

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("beta2", 0 <= self.beta2 < 1, "at least 0, below 1")

    def next_second(self, second: Floats, square: Floats) -> Floats:
        return second - (1 - self.beta2) * square * np.sign(second - square)
