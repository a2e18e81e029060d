"""FedAvg: the weighted mean of the clients' movements (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.aggregation.base import MeanAggregator, Update, Updates, aggregators
from muster.core.arrays import Floats


@aggregators.register("fedavg")
@dataclass
class FedAvg(MeanAggregator):
    """Mean of the clients' models, weighted by sample counts or equally."""

    weights: Literal["samples", "equal"] = "samples"

    def weight(self, update: Update) -> float:
        return float(update.size) if self.weights == "samples" else 1.0

    def _take_notes(self, updates: Updates) -> tuple[Floats, Floats]:
        # Exactly this class: one that is derived from it may look at single updates.
        if type(self) is not FedAvg:
            return super()._take_notes(updates)
        own = updates.sizes.astype(np.float64) if self.weights == "samples" else np.ones(len(updates))
        weights: Floats = (own if updates.weights is None else updates.weights) * updates.multiplicity
        self._seen += zip(updates.clients.tolist(), weights.tolist(), strict=True)
        first = int(np.argmax(weights))
        if weights[first] > self._heaviest:
            self._heaviest = float(weights[first])
            self._counters = updates.movements[first, self._spec.counted].copy()
        return weights, weights
