"""A whole update in a few numbers: the centres of its entries (HCSFed, Song et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.signals.base import Signal, signals
from muster.signals.updates import moved
from muster.training.context import ClientContext

ITERATIONS = 300


def centres(values: Floats, count: int, tolerance: float = 1e-3) -> Floats:
    """The `count` centres of one-dimensional k-means on `values`, ascending.

    Lloyd's iteration from evenly spaced quantiles. On sorted values a cluster is a range, so that prefix sums
    make an iteration O(count · log n). It ends when the centres together move less than `tolerance` times the
    standard deviation. A centre whose range is empty stays where it is.
    """
    ordered = np.sort(values)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    found = np.quantile(ordered, (np.arange(count) + 0.5) / count)
    enough = tolerance * ordered.std()
    for _ in range(ITERATIONS):
        inner = np.searchsorted(ordered, (found[1:] + found[:-1]) / 2)
        bounds = np.concatenate([[0], inner, [len(ordered)]])
        members = np.diff(bounds)
        means = np.diff(sums[bounds]) / np.maximum(members, 1)
        updated = np.sort(np.where(members > 0, means, found))
        shift = np.abs(updated - found).sum()
        found = updated
        if shift <= enough:
            break
    return found


@signals.register("compressed_update")
@dataclass(frozen=True)
class CompressedUpdate(Signal):
    """The update's entries summed up by a few centres, ascending."""

    name: ClassVar[str] = "compressed_update"
    discloses: ClassVar[str] = "nothing beyond the model update"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    reveals_update: ClassVar[bool] = True

    #: Centres for each trainable parameter of the model.
    ratio: float = 1e-5
    #: Compress the movement, or the trained weights themselves.
    of: Literal["update", "weights"] = "update"
    #: Centres have settled when together they move less than this many standard deviations.
    tolerance: float = 1e-3

    def _count(self, parameters: int) -> int:
        return max(1, int(self.ratio * parameters))

    def width(self, population: Population) -> int:
        return self._count(population.spec.trainable.stop)

    def measure(self, client: ClientContext) -> Floats:
        trainable = client.spec.trainable
        values = moved(self, client, trainable)
        if self.of == "weights":
            values = values + client.origin[trainable].cpu().numpy()
        return centres(values, self._count(trainable.stop), self.tolerance)
