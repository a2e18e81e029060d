"""FLTrust: clients are trusted to the extent that they agree with the server's own data (Cao et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import accumulate, norms
from muster.aggregation._gram import inner_products
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators, buffers_of
from muster.core.arrays import Floats, Vector
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def trust_scores(rows: Vector, root: Vector) -> Floats:
    """max(0, cosine) of each row and the server's own movement; 0 where one of the two has no direction."""
    inner = inner_products(rows, root)
    lengths = np.sqrt(np.diagonal(inner.gram) * inner.reference)
    cosines = np.divide(inner.products, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    return np.asarray(np.clip(cosines, 0.0, 1.0))


@aggregators.register("fltrust")
@dataclass
class FLTrust(Aggregator):
    """Movements as long as the server's own, weighted by how much they agree with it.

    The server trains on the samples that `data.validation` holds out. Where no client agrees with it,
    the model stays as it is. Running statistics are those of the server's own training: trust is about directions,
    and most clients may be attackers.
    """

    needs_root: ClassVar[bool] = True
    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"

    _root: Vector | None = field(default=None, init=False, repr=False, compare=False)

    def trust(self, movement: Vector) -> None:
        """The movement of the server's own training, for the next aggregation."""
        self._root = movement

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        if self._root is None:
            raise TrainingError(
                "fltrust: the server has not trained on its own data", fix="call `trust` before `aggregate`"
            )
        root, self._root = self._root, None
        rows = updates.movements[:, spec.trainable]
        scores = trust_scores(rows, root[spec.trainable])
        total = float(scores.sum())
        weights = scores / total if total > 0 else np.zeros(len(updates))
        lengths = norms(rows)
        scale = np.divide(
            norms(root[None, spec.trainable])[0], lengths, out=np.zeros(len(rows)), where=lengths > 0
        )
        step, buffers = np.zeros(spec.averaged.stop), buffers_of(spec)
        accumulate(step[spec.trainable], rows, weights * scale)
        if total > 0:
            step[buffers] = root[buffers]
        result = self.moved(current, step, spec, updates, weights)
        result.parameters[spec.counted] = (root if total > 0 else current)[spec.counted]
        return result
