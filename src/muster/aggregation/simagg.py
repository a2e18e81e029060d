"""SimAgg: weights from the distance to the mean model, mixed with sample counts (Khan et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._blocks import accumulate, cached_width, column_blocks
from muster.aggregation.base import Aggregated, DiscountingAggregator, StaleUse, aggregators, buffers_of
from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates, capped, normalised


def mixed_weights(
    distances: Floats, sizes: Ints, epsilon: float = 1e-5, multiplicity: Ints | None = None
) -> Floats:
    """Half inverse distance, half sample count; equal similarity weights when all distances are zero.

    A client with multiplicity 2 counts as two clients with the same model.
    """
    times = np.ones(len(sizes)) if multiplicity is None else multiplicity.astype(np.float64)
    closeness = np.ones(len(sizes)) if not distances.any() else times @ distances / (distances + epsilon)
    return (normalised(times * closeness) + normalised(times * sizes)) / 2


def distances(
    rows: Vector,
    distance: Literal["l1", "sumdiff"] = "l1",
    anchor: Literal["mean", "global"] = "mean",
    multiplicity: Ints | None = None,
) -> Floats:
    """How far each movement is from the anchor: the plain mean of the movements, or zero (the global model).

    Movements instead of models: all distances are differences, in which the global model cancels.
    """
    totals = np.zeros(len(rows))
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        part = rows[:, block].astype(np.float64)
        if anchor == "mean":
            part -= np.average(part, axis=0, weights=multiplicity)
        totals += np.abs(part).sum(axis=1) if distance == "l1" else part.sum(axis=1)
    return np.abs(totals)


@aggregators.register("simagg")
@dataclass
class SimAgg(DiscountingAggregator):
    """Clients near the mean model count more, and so do clients with many samples.

    Where answers are to models of several versions, distances are between the models that clients sent; what is
    averaged are movements, as always.
    """

    #: Weights for each tensor of the model, or one weight for the whole model.
    scope: Literal["layer", "model"] = "layer"
    #: "sumdiff" compares sums of entries instead of entries, as the published code does.
    distance: Literal["l1", "sumdiff"] = "l1"
    #: What distances are measured to: the mean of the participants, or the global model they started from.
    anchor: Literal["mean", "global"] = "mean"
    epsilon: float = 1e-5

    honours_weights: ClassVar[bool] = False
    bounds_weights: ClassVar[bool] = True
    stale: ClassVar[StaleUse | None] = "models"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("epsilon", self.epsilon > 0, "a positive number")

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        layers = [entry.slice for entry in spec.parameters] if self.scope == "layer" else [spec.trainable]
        step = np.zeros(spec.averaged.stop)
        overall = np.zeros(len(updates))
        for layer in layers:
            rows = updates.movements[:, layer]
            models = updates.seen_from_current(layer)
            apart = distances(models, self.distance, self.anchor, updates.multiplicity)
            weights = mixed_weights(apart, updates.sizes, self.epsilon, updates.multiplicity)
            if updates.staleness.any():
                weights = normalised(weights * self.discount(updates))
            weights = capped(weights, self.max_weight)
            accumulate(step[layer], rows, weights)
            overall += weights * ((layer.stop - layer.start) / spec.trainable.stop)
        buffers = buffers_of(spec)
        accumulate(step[buffers], updates.movements[:, buffers], overall)
        return self.moved(current, step, spec, updates, overall)
