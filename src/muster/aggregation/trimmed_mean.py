"""Coordinate-wise trimmed mean (Yin et al., 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import cached_width, column_blocks
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def trimmed_mean(rows: Vector, ratio: float) -> Floats:
    """The mean of each column without its ⌊ratio · rows⌋ smallest and as many largest values."""
    drop = left_out(len(rows), ratio)
    result = np.empty(rows.shape[1])
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        ordered = np.sort(rows[:, block].T, axis=1)
        result[block] = ordered[:, drop : len(rows) - drop].mean(axis=1, dtype=np.float64)
    return result


def left_out(rows: int, ratio: float) -> int:
    """How many are left out at each end."""
    # The tolerance keeps 0.2 · 5 from being floored to 0 where the product is a hair below 1.
    return math.floor(ratio * rows + 1e-9)


@aggregators.register("trimmed-mean")
@dataclass
class TrimmedMean(Aggregator):
    """Coordinate-wise mean without the largest and smallest values."""

    #: Share of the clients that is left out at each end.
    ratio: float = 0.2

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    #: A robust centre of movements; where answers are of several ages, honest ones differ more.
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("ratio", 0 <= self.ratio < 0.5, "at least 0, below 0.5: something must be left")

    def cautions(self, population: Population) -> list[str]:
        if population.cohort is not None and not left_out(population.cohort, self.ratio):
            return [
                f"trimmed-mean is fedavg with equal weights here: {self.ratio:g} of {population.cohort} clients "
                "is less than one, so no client is left out"
            ]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        step = trimmed_mean(updates.movements[:, spec.averaged], self.ratio)
        equal = np.full(len(updates), 1 / len(updates))
        return self.moved(current, step, spec, updates, equal)
