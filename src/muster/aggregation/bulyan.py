"""Bulyan: Krum chooses, a trimmed mean around the median decides (El Mhamdi et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import cached_width, column_blocks
from muster.aggregation._gram import inner_products
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators
from muster.aggregation.krum import krum_scores
from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def chosen_by_krum(squared_distances: Floats, attackers: int, count: int) -> Ints:
    """Rows that Krum takes one at a time, each time among those that are left; ascending.

    When few are left, scores look at one neighbour only, and two that are each other's nearest are always tied:
    then the one with the lower score among all clients is taken.
    """
    left, at_first = np.arange(len(squared_distances)), krum_scores(squared_distances, attackers)
    chosen = []
    for _ in range(count):
        among = squared_distances[np.ix_(left, left)]
        best = int(np.lexsort((at_first[left], krum_scores(among, attackers)))[0])
        chosen.append(int(left[best]))
        left = np.delete(left, best)
    return np.sort(np.array(chosen, dtype=np.int64))


def mean_around_median(rows: Vector, count: int) -> Floats:
    """Of each column the mean of the `count` values that are closest to its median.

    In sorted order the closest values are neighbours, so only a few windows need comparing.
    """
    result = np.empty(rows.shape[1])
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        ordered = np.sort(rows[:, block].astype(np.float64), axis=0)
        median = (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2
        starts = np.arange(len(rows) - count + 1)
        # A window is as good as its further end is near.
        reach = np.maximum(median - ordered[starts], ordered[starts + count - 1] - median)
        first = np.argmin(reach, axis=0)
        sums = np.concatenate([np.zeros((1, ordered.shape[1])), np.cumsum(ordered - median, axis=0)])
        columns = np.arange(ordered.shape[1])
        result[block] = median + (sums[first + count, columns] - sums[first, columns]) / count
    return result


@aggregators.register("bulyan")
@dataclass
class Bulyan(Aggregator):
    """Mean around the median of the clients that Krum chooses."""

    #: Clients (f) that may send anything; 4f + 3 updates are needed to withstand them.
    attackers: int = 1

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        needed = 4 * self.attackers + 3
        self.require("attackers", self.attackers >= 0, "zero or a positive number")
        self.require(
            "attackers",
            needed <= population.clients,
            f"at most {(population.clients - 3) // 4}: withstanding f attackers takes 4f + 3 = {needed} clients",
        )

    def cautions(self, population: Population) -> list[str]:
        needed = 4 * self.attackers + 3
        if population.cohort is not None and population.cohort < needed:
            return [
                f"bulyan will stop in round 1: {population.cohort} updates at a time, but it takes 4f + 3 = "
                f"{needed}"
            ]
        if not self.attackers:
            return ["bulyan is fedavg with equal weights here: without attackers all clients are kept"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        if len(updates) < 4 * self.attackers + 3:
            raise TrainingError(
                f"Bulyan: {len(updates)} updates came, too few to withstand {self.attackers} attackers",
                expected=f"at least 4f + 3 = {4 * self.attackers + 3}",
                fix="select more clients per round, or lower `attackers`",
            )
        distances = inner_products(updates.movements[:, spec.trainable]).squared_distances
        chosen = chosen_by_krum(distances, self.attackers, len(updates) - 2 * self.attackers)
        step = mean_around_median(updates.movements[chosen][:, spec.averaged], len(chosen) - 2 * self.attackers)
        weights = np.zeros(len(updates))
        weights[chosen] = 1 / len(chosen)
        return self.moved(current, step, spec, updates, weights)
