"""Each client is up or down by its own coin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.world.availability.base import Availability, availabilities


@availabilities.register("bernoulli")
@dataclass(frozen=True)
class Bernoulli(Availability):
    """Each client can be reached with probability p, independently in every round."""

    p: float = 0.9

    def check(self, population: Population) -> None:
        if not 0 < self.p <= 1:
            raise ConfigError(f"bad value for 'availability.p': {self.p}", expected="0 < p ≤ 1")

    def available(self, moment: float, clients: int, seed: int) -> Ints:
        return np.flatnonzero(generator(seed, "availability", int(moment)).random(clients) < self.p)
