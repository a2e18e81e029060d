"""Krum and multi-Krum: the clients with the closest neighbours (Blanchard et al., 2017)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._gram import inner_products
from muster.aggregation._robust import MedianStatistics
from muster.aggregation.base import Aggregated, StaleUse, aggregators
from muster.aggregation.median import coordinate_median
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def krum_scores(squared_distances: Floats, attackers: int) -> Floats:
    """For each client the sum of squared distances to its nearest m − f − 2 others (at least one)."""
    clients = len(squared_distances)
    others = squared_distances + np.diag(np.full(clients, np.inf))
    nearest = max(1, clients - attackers - 2)
    scores: Floats = np.sort(others, axis=1)[:, :nearest].sum(axis=1)
    return scores


@dataclass
class NeighbourAggregator(MedianStatistics):
    """Averages the clients with the lowest Krum scores.

    Scores are distances between trainable parameters; running statistics take the median of all clients.
    """

    #: Clients (f) that may send anything; 2f + 3 updates are needed to withstand them.
    attackers: int = 1
    #: When fewer came: stop with an error, or take the coordinate-wise median in this round.
    too_few: Literal["error", "median"] = "error"

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    #: A robust centre of movements; where answers are of several ages, honest ones differ more.
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        needed = 2 * self.attackers + 3
        self.require("attackers", self.attackers >= 0, "zero or a positive number")
        self.require(
            "attackers",
            needed <= population.clients,
            f"at most {(population.clients - 3) // 2}: withstanding f attackers takes 2f + 3 = {needed} clients",
        )

    def cautions(self, population: Population) -> list[str]:
        name, needed = aggregators.name_of(self), 2 * self.attackers + 3
        if population.cohort is None or population.cohort >= needed:
            return super().cautions(population)
        what = "is the median here" if self.too_few == "median" else "will stop in round 1"
        return [f"{name} {what}: {population.cohort} updates at a time, but it takes 2f + 3 = {needed}"]

    @abstractmethod
    def kept(self, updates: int) -> int:
        """How many clients are averaged."""

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        if len(updates) < 2 * self.attackers + 3:
            if self.too_few == "error":
                raise self._too_few(len(updates))
            equal = np.full(len(updates), 1 / len(updates))
            return self.moved(
                current, coordinate_median(updates.movements[:, spec.averaged]), spec, updates, equal
            )
        distances = inner_products(updates.movements[:, spec.trainable]).squared_distances
        best = np.argsort(krum_scores(distances, self.attackers), kind="stable")[: self.kept(len(updates))]
        weights = np.zeros(len(updates))
        weights[best] = 1 / len(best)
        return self.averaged(current, updates, weights, spec)

    def _too_few(self, updates: int) -> TrainingError:
        return TrainingError(
            f"{type(self).__name__}: {updates} updates came, too few to withstand {self.attackers} attackers",
            expected=f"at least 2f + 3 = {2 * self.attackers + 3}",
            fix="select more clients per round, lower `attackers`, or set too_few = 'median'",
        )


@aggregators.register("krum")
@dataclass
class Krum(NeighbourAggregator):
    """The one client whose nearest neighbours are closest."""

    def kept(self, updates: int) -> int:
        return 1


@aggregators.register("multi-krum")
@dataclass
class MultiKrum(NeighbourAggregator):
    """Mean of the clients whose nearest neighbours are closest."""

    #: How many clients are averaged; None: all but the attackers.
    keep: int | None = None

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("keep", self.keep is None or self.keep >= 1, "at least 1")

    def cautions(self, population: Population) -> list[str]:
        found = super().cautions(population)
        cohort = population.cohort
        if not found and cohort is not None and self.kept(cohort) >= cohort:
            return ["multi-krum is fedavg with equal weights here: all clients are kept"]
        if not found and self.keep == 1:
            return ["multi-krum is krum here: one client is kept"]
        return found

    def kept(self, updates: int) -> int:
        return updates - self.attackers if self.keep is None else min(self.keep, updates)
