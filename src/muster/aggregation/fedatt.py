"""FedAtt: layer-wise attention by distance from the global model (Ji et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.special import softmax

from muster.aggregation._blocks import accumulate, norms
from muster.aggregation.base import Aggregated, Aggregator, aggregators, buffers_of
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.updates.table import Updates, normalised


def attention(lengths: Floats) -> Floats:
    """Softmax of the distances from the global model: the further a client moved a layer, the more it counts."""
    weights: Floats = softmax(lengths)
    return weights


@aggregators.register("fedatt")
@dataclass
class FedAtt(Aggregator):
    """Layer by layer, clients that moved further get more attention."""

    #: Length of the step towards the attention's mean, per layer.
    epsilon: float = 1.2
    #: Length of a layer's movement; "spectral": largest singular value for matrices, as in the published code.
    norm: Literal["frobenius", "spectral"] = "frobenius"

    honours_weights: ClassVar[bool] = False
    not_stale: ClassVar[str] = (
        "it gives more weight to models far from the global one, and an older one is far because it is older"
    )

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("epsilon", self.epsilon > 0, "a positive number")

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        step = np.zeros(spec.averaged.stop)
        overall = np.zeros(len(updates))
        for layer in spec.parameters:
            rows = updates.movements[:, layer.slice]
            weights = normalised(updates.multiplicity * attention(self._lengths(rows, layer)))
            accumulate(step[layer.slice], rows, self.epsilon * weights)
            overall += weights * (rows.shape[1] / spec.trainable.stop)
        buffers = buffers_of(spec)
        accumulate(step[buffers], updates.movements[:, buffers], overall)
        return self.moved(current, step, spec, updates, overall)

    def _lengths(self, rows: Vector, layer: SpecEntry) -> Floats:
        if self.norm == "spectral" and len(layer.shape) == 2:
            matrices = rows.reshape(len(rows), *layer.shape)
            return np.array([np.linalg.norm(matrix.astype(np.float64), 2) for matrix in matrices])
        return norms(rows)
