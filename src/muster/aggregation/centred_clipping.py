"""Centred clipping: no client pulls far from the last step (Karimireddy et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import combination, norms
from muster.aggregation._robust import MedianStatistics
from muster.aggregation.base import Aggregated, StaleUse, aggregators
from muster.core.arrays import Floats, Vector
from muster.core.component import Population, state
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates, normalised


def clipped_mean(rows: Vector, centre: Floats, radius: float, iterations: int) -> tuple[Floats, Floats]:
    """The centre after `iterations` steps, and the factor by which each row's distance was shortened in the last.

    v ← v + mean of (x − v) · min(1, radius/‖x − v‖).
    """
    centre, factors = centre.copy(), np.ones(len(rows))
    for _ in range(iterations):
        lengths = np.array([norms((row - centre)[None])[0] for row in rows])
        factors = radius / np.maximum(lengths, radius)
        step = combination(rows, factors / len(rows))
        centre += step - centre * float(factors.mean())
    return centre, factors


@aggregators.register("centred-clipping")
@dataclass
class CentredClipping(MedianStatistics):
    """Mean of the movements, each clipped to a radius around the last round's step."""

    #: τ: no client pulls further than this from the last step.
    radius: float = 10.0
    iterations: int = 3

    #: The last step of the trainable parameters, before the server's rate.
    centre: Floats = state(lambda: np.zeros(0))

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("radius", 0 < self.radius < np.inf, "a positive number")
        self.require("iterations", self.iterations >= 1, "at least 1")

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        rows = updates.movements[:, spec.trainable]
        before = self.centre if len(self.centre) else np.zeros(rows.shape[1])
        self.centre, factors = clipped_mean(rows, before, self.radius, self.iterations)
        step = np.zeros(spec.averaged.stop)
        step[spec.trainable] = self.centre
        return self.moved(current, step, spec, updates, normalised(factors))
