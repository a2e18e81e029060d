"""FedAvg: the weighted mean of the clients' movements (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.aggregation.base import MeanAggregator, Update, aggregators


@aggregators.register("fedavg")
@dataclass
class FedAvg(MeanAggregator):
    """Mean of the clients' models, weighted by sample counts or equally."""

    weights: Literal["samples", "equal"] = "samples"

    def weight(self, update: Update) -> float:
        return float(update.size) if self.weights == "samples" else 1.0
