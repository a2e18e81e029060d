"""Coordinate-wise median (Yin et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import cached_width, column_blocks
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def coordinate_median(rows: Vector) -> Floats:
    """The median of each column; the mean of the two middle values when there are two."""
    result = np.empty(rows.shape[1])
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        ordered = np.sort(rows[:, block].T, axis=1)
        low, high = ordered[:, (len(rows) - 1) // 2], ordered[:, len(rows) // 2]
        result[block] = (low.astype(np.float64) + high) / 2
    return result


@aggregators.register("median")
@dataclass
class Median(Aggregator):
    """Coordinate-wise median of the clients' models; sample counts do not matter."""

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    #: A robust centre of movements; where answers are of several ages, honest ones differ more.
    stale: ClassVar[StaleUse | None] = "movements"

    def cautions(self, population: Population) -> list[str]:
        if population.cohort is not None and population.cohort <= 2:
            return ["median is fedavg with equal weights here: of two clients the median is the mean"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        step = coordinate_median(updates.movements[:, spec.averaged])
        equal = np.full(len(updates), 1 / len(updates))
        return self.moved(current, step, spec, updates, equal)
