"""Norm bounding: no client pulls further than a bound (Sun et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._blocks import accumulate, norms
from muster.aggregation.base import Aggregated, DiscountingAggregator, StaleUse, aggregators, buffers_of
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def shortening(lengths: Floats, bound: float) -> Floats:
    """Factors that bring each length down to the bound; lengths below it stay."""
    return np.minimum(1.0, bound / np.maximum(lengths, np.finfo(np.float64).tiny))


@aggregators.register("norm-bounding")
@dataclass
class NormBounding(DiscountingAggregator):
    """Mean of movements that are shortened to a bound, or to a quantile of the cohort's lengths.

    A fixed bound for the trainable part does what `clip_norm` does; a quantile adapts to the stage of training.
    Running statistics are bounded by the quantile of their own lengths, because they move on a different scale.
    """

    weights: Literal["samples", "equal"] = "samples"
    #: Longest movement; None: the quantile below, over the updates of this training.
    bound: float | None = None
    quantile: float = 0.5

    bounds_weights: ClassVar[bool] = True
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("bound", self.bound is None or self.bound > 0, "a positive number")
        self.require("quantile", 0 <= self.quantile <= 1, "0 to 1")

    def cautions(self, population: Population) -> list[str]:
        if self.bound is None and self.quantile == 1:
            return ["norm-bounding is fedavg here: with quantile = 1 the bound is the longest movement"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        weights = updates.shares(self.weights, self.discount(updates), self.max_weight)
        step = np.zeros(spec.averaged.stop)
        buffers = buffers_of(spec)
        for part, bound in ((spec.trainable, self.bound), (buffers, None)):
            lengths = norms(updates.movements[:, part])
            # What counts nothing does not make room for others either.
            limit = float(np.quantile(lengths[weights > 0], self.quantile)) if bound is None else bound
            accumulate(step[part], updates.movements[:, part], weights * shortening(lengths, limit))
        return self.moved(current, step, spec, updates, weights)
