"""FedAdagrad: Adagrad on the server (Reddi et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from muster.aggregation._adaptive import AdaptiveAggregator
from muster.aggregation.base import aggregators
from muster.core.arrays import Floats


@aggregators.register("fedadagrad")
@dataclass
class FedAdagrad(AdaptiveAggregator):
    """Adagrad on the server: steps scaled by the sum of all squared movements so far."""

    beta1: float = 0.0

    def next_second(self, second: Floats, square: Floats) -> Floats:
        return second + square
