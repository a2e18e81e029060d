"""Geometric median by the smoothed Weiszfeld iteration (RFA; Pillutla et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._gram import inner_products, squared_distances
from muster.aggregation._robust import MedianStatistics
from muster.aggregation.base import Aggregated, DiscountingAggregator, StaleUse, aggregators
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def weiszfeld(
    gram: Floats, weights: Floats, smoothing: float = 1e-6, iterations: int = 100, tolerance: float = 1e-6
) -> Floats:
    """Coefficients of the points in their weighted geometric median.

    Every iterate is a convex combination of the points, so its distances to them follow from their inner products:
    an iteration costs O(points²), whatever their dimension. It ends when the iterate moves less than `tolerance`
    times the distance to the nearest point (a mean distance would let one distant point end it early).
    """
    gram = _centred(gram)
    coefficients = weights
    for _ in range(iterations):
        along = gram @ coefficients
        lengths = np.sqrt(np.maximum(np.diagonal(gram) - 2 * along + coefficients @ along, 0.0))
        closer = weights / np.maximum(lengths, smoothing)
        closer /= closer.sum()
        change = closer - coefficients
        coefficients = closer
        if float(change @ gram @ change) <= (tolerance * float(lengths.min())) ** 2:
            break
    return coefficients


def _centred(gram: Floats) -> Floats:
    """Inner products relative to the point with the smallest sum of distances.

    It lies among the honest points: their distances keep all digits, however far away others are.
    """
    origin = int(np.argmin(np.sqrt(squared_distances(gram)).sum(axis=1)))
    row = gram[origin]
    centred: Floats = (gram - row[None, :]) - (row[:, None] - row[origin])
    return centred


@aggregators.register("geometric-median")
@dataclass
class GeometricMedian(MedianStatistics, DiscountingAggregator):
    """The point with the smallest weighted sum of distances to the clients' models.

    Distances are between trainable parameters; running statistics take the coordinate-wise median of all clients.
    """

    weights: Literal["samples", "equal"] = "equal"
    #: Distances are not taken below this, so that an iterate may sit on a client's model.
    smoothing: float = 1e-6
    iterations: int = 100
    tolerance: float = 1e-6

    bounds_weights: ClassVar[bool] = True
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("smoothing", self.smoothing > 0, "a positive number")
        self.require("iterations", self.iterations >= 1, "at least 1")
        self.require("tolerance", self.tolerance >= 0, "zero or a positive number")

    def cautions(self, population: Population) -> list[str]:
        if population.cohort == 2 and self.weights == "equal":
            return ["geometric-median is fedavg with equal weights here: between two clients it is their mean"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        weights = updates.shares(self.weights, self.discount(updates), self.max_weight)
        gram = inner_products(updates.movements[:, spec.trainable]).gram
        coefficients = weiszfeld(gram, weights, self.smoothing, self.iterations, self.tolerance)
        return self.averaged(current, updates, coefficients, spec)
