"""DnC: leave out what stands out along the main direction (Shejwalkar and Houmansadr, 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from muster.aggregation._robust import MedianStatistics
from muster.aggregation.base import Aggregated, StaleUse, aggregators
from muster.core.arrays import Bools, Floats, Vector
from muster.core.component import Population
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def outlier_scores(rows: Floats) -> Floats:
    """Squared projections of the centred rows on their main direction (the first right singular vector).

    They are the first left singular vector's entries times the singular value: the eigenvectors of a matrix of
    clients × clients suffice.
    """
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(max(float(values[-1]), 0.0) * vectors[:, -1] ** 2)


def inconspicuous(scores: Floats, count: int) -> Bools:
    """The `count` lowest scores, without those that equal one that is not among them.

    Attackers that send the same stand out equally: if ties were kept, one more of them than expected would save
    all. If all would be left out, none stands out, and ties are kept.
    """
    ascending = np.sort(scores)
    if count >= len(scores):
        return np.ones(len(scores), dtype=np.bool_)
    # Scores that differ only by rounding are equal.
    slack = 1e-12 * float(ascending[-1])
    kept = scores < ascending[count] - slack
    return np.asarray(kept if kept.any() else scores <= ascending[count - 1] + slack)


@aggregators.register("dnc")
@dataclass
class DivideAndConquer(MedianStatistics):
    """Mean of the clients that never stand out along the main direction of random coordinates."""

    #: Clients (f) that may send anything.
    attackers: int = 1
    #: c: c times f clients are left out each time.
    filter_factor: float = 1.0
    #: How many draws of coordinates, and how many coordinates each.
    iterations: int = 5
    dimensions: int = 10_000

    draws: ClassVar[bool] = True
    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"

    _rng: np.random.Generator | None = field(default=None, init=False, repr=False, compare=False)

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("attackers", self.attackers >= 0, "zero or a positive number")
        self.require("filter_factor", self.filter_factor > 0, "a positive number")
        self.require("iterations", self.iterations >= 1, "at least 1")
        self.require("dimensions", self.dimensions >= 1, "at least 1")

    def cautions(self, population: Population) -> list[str]:
        if not self.left_out:
            return ["dnc is fedavg with equal weights here: filter_factor · attackers leaves no client out"]
        if population.cohort is not None and 1 < population.cohort <= self.left_out:
            return [
                f"dnc will stop in round 1: {population.cohort} updates at a time, and {self.left_out} are to be "
                "left out"
            ]
        return super().cautions(population)

    @property
    def left_out(self) -> int:
        """Clients that are left out each time."""
        return int(self.filter_factor * self.attackers)

    def draw_from(self, rng: np.random.Generator) -> None:
        """Makes the coordinates of the next aggregation."""
        self._rng = rng

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        left_out = self.left_out
        if left_out and len(updates) <= left_out and len(updates) > 1:
            raise TrainingError(
                f"DnC: {len(updates)} updates came, and {left_out} are to be left out",
                fix="select more clients per round, or lower `attackers` or `filter_factor`",
            )
        if self._rng is None:
            raise TrainingError("dnc: there is nothing to draw from", fix="call `draw_from` before `aggregate`")
        rng, self._rng = self._rng, None
        good = self._good(updates.movements[:, spec.trainable], max(1, len(updates) - left_out), rng)
        return self.averaged(current, updates, good / good.sum(), spec)

    def _good(self, rows: Vector, count: int, rng: np.random.Generator) -> Bools:
        """Clients that are never left out; if there are none, those that are left out least often."""
        kept = np.zeros(len(rows), dtype=np.int64)
        for _ in range(self.iterations):
            columns = rng.permutation(rows.shape[1])[: self.dimensions]
            kept += inconspicuous(outlier_scores(rows[:, np.sort(columns)].astype(np.float64)), count)
        return np.asarray(kept == kept.max())
