"""Fang's attacks on robust aggregation: as far against the honest direction as the rule allows (2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.updates.attacks.base import Collusion
from muster.updates.filters import filters

#: The search for λ ends below this.
SMALLEST = 1e-5


def beyond_extremes(honest: Floats, attackers: int, spread: float, rng: np.random.Generator) -> Floats:
    """Against coordinate-wise trimming: random values just beyond the honest extreme, on the wrong side.

    Where honest clients increase a coordinate on average, the values lie between their smallest value and that
    times `spread` (divided by it where the smallest is positive); elsewhere the mirror image.
    """
    low, high = honest.min(axis=0), honest.max(axis=0)
    below = np.where(low > 0, low / spread, low * spread)
    above = np.where(high > 0, high * spread, high / spread)
    increases = honest.mean(axis=0) > 0
    ends = np.where(increases, below, high), np.where(increases, low, above)
    return rng.uniform(*ends, size=(attackers, honest.shape[1]))


def nearest_sums(squared: Floats, attackers: int) -> Floats:
    """Krum's score of every row: the sum of its squared distances to the nearest n − f − 2 others."""
    count = len(squared)
    others = np.sort(squared + np.diag(np.full(count, np.inf)), axis=1)
    return np.asarray(others[:, : max(1, count - attackers - 2)].sum(axis=1))


def largest_accepted(honest: Floats, attackers: int) -> float:
    """λ: how far attackers may go against the honest direction, in every coordinate, so that Krum picks one.

    Halved from an upper bound until it works; all attackers send the same, so that they are each other's
    neighbours. 0 where nothing works.
    """
    clients, size = len(honest) + attackers, honest.shape[1]
    squares = np.einsum("kp,kp->k", honest, honest)
    among = np.maximum(np.add.outer(squares, squares) - 2 * honest @ honest.T, 0.0)
    direction = np.sign(honest.mean(axis=0))
    along = honest @ direction
    length = float(direction @ direction)
    nearest = np.sort(np.sqrt(among), axis=1)[:, 1 : max(2, clients - attackers - 1)].sum(axis=1).min()
    room = max(1, clients - 2 * attackers - 1)
    bound = float(nearest) / (room * math.sqrt(size)) + math.sqrt(float(squares.max()) / size)
    squared = np.zeros((clients, clients))
    squared[attackers:, attackers:] = among
    while bound > SMALLEST:
        # ‖Δ_i + λ·s‖² for every honest client.
        apart = np.maximum(squares + 2 * bound * along + bound**2 * length, 0.0)
        squared[:attackers, attackers:], squared[attackers:, :attackers] = apart, apart[:, None]
        if int(np.argmin(nearest_sums(squared, attackers))) < attackers:
            return bound
        bound /= 2
    return 0.0


@filters.register("fang")
@dataclass(frozen=True)
class Fang(Collusion):
    """Attack: optimised against trimmed mean and median, or against Krum, with full knowledge."""

    against: Literal["trimmed-mean", "krum"] = "trimmed-mean"
    #: How far beyond the honest extreme (trimmed mean).
    spread: float = 2.0

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("spread", 1 < self.spread < np.inf, "above 1")

    def crafted(self, honest: Floats, attackers: int, rng: np.random.Generator) -> Floats:
        if self.against == "trimmed-mean":
            return beyond_extremes(honest, attackers, self.spread, rng)
        return np.asarray(-largest_accepted(honest, attackers) * np.sign(honest.mean(axis=0)))
