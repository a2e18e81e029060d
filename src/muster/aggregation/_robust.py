"""Running statistics where clients may send anything beside their weights."""

from __future__ import annotations

from muster.aggregation.base import Aggregated, Aggregator, buffers_of, votes
from muster.aggregation.median import coordinate_median
from muster.core.arrays import Floats, Vector
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


class MedianStatistics(Aggregator):
    """For methods that judge clients by trainable parameters: running statistics take the median of all clients.

    A client whose weights pass may have sent absurd statistics beside them, so whom a method accepts says nothing
    about these. The median of all is within the honest clients' range as long as they are the majority, which
    every such method assumes anyway.
    """

    def moved(
        self, current: Vector, step: Floats, spec: ParameterSpec, updates: Updates, weights: Floats
    ) -> Aggregated:
        buffers = buffers_of(spec)
        step[buffers] = coordinate_median(votes(updates, buffers))
        return super().moved(current, step, spec, updates, weights)
