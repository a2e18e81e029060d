"""FedAvg: the weighted mean of the clients' movements (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.aggregation.base import MeanAggregator, Update, aggregators
from muster.arrays import Floats, Vector
from muster.parameters import ParameterSpec


@aggregators.register("fedavg")
@dataclass
class FedAvg(MeanAggregator):
    """Mean of the clients' models, weighted by sample counts or equally."""

    weights: Literal["samples", "equal"] = "samples"

    def weight(self, update: Update) -> float:
        return float(update.size) if self.weights == "samples" else 1.0

    def step(self, current: Vector, mean: Floats, spec: ParameterSpec) -> Vector:
        return (current + self.server_lr * mean).astype(np.float32)
