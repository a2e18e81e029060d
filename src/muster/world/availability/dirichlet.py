"""Skewed participation: some clients can be reached often, others hardly ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.core.sampling import weighted_sample
from muster.world.availability.base import Availability, availabilities


def participation_probabilities(clients: int, gamma: float, rng: np.random.Generator) -> Floats:
    """One draw from Dir(gamma, …, gamma) over the clients; an infinite gamma makes them equal."""
    if np.isinf(gamma):
        return np.full(clients, 1.0 / clients)
    return rng.dirichlet(np.full(clients, gamma))


@availabilities.register("dirichlet")
@dataclass(frozen=True)
class DirichletAvailability(Availability):
    """A fixed share of the clients each round, drawn with Dirichlet-skewed probabilities.

    Clients are drawn one at a time, without replacement, with probability ∝ π ~ Dir(gamma). With
    redraw = "never" π is fixed for the run, so the same clients stay rare. With "every_round" only the rounds are
    uneven: in the long run all clients can be reached equally often, whatever gamma is.
    """

    gamma: float = 0.5
    share: float = 0.1
    redraw: Literal["never", "every_round"] = "never"

    def check(self, population: Population) -> None:
        if not self.gamma > 0:
            raise ConfigError(
                f"bad value for 'availability.gamma': {self.gamma}", expected="a positive number (inf: no skew)"
            )
        if not 0 < self.share <= 1:
            raise ConfigError(f"bad value for 'availability.share': {self.share}", expected="0 < share ≤ 1")

    def available(self, moment: float, clients: int, seed: int) -> Ints:
        rng = generator(seed, "availability", int(moment))
        skew = generator(seed, "availability") if self.redraw == "never" else rng
        probabilities = participation_probabilities(clients, self.gamma, skew)
        # The small number makes up for products such as 0.29 · 100, which fall short of a whole number.
        return np.sort(weighted_sample(probabilities, max(1, int(self.share * clients + 1e-9)), rng))
