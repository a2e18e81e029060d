"""FedAvg: the weighted mean of the clients' movements (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation.base import DiscountingAggregator, MeanAggregator, StaleUse, aggregators
from muster.core.arrays import Floats
from muster.updates.table import Updates


@aggregators.register("fedavg")
@dataclass
class FedAvg(DiscountingAggregator, MeanAggregator):
    """Mean of the clients' models, weighted by sample counts or equally."""

    weights: Literal["samples", "equal"] = "samples"

    stale: ClassVar[StaleUse | None] = "movements"

    def weight(self, updates: Updates) -> Floats:
        return super().weight(updates) if self.weights == "samples" else np.ones(len(updates))
