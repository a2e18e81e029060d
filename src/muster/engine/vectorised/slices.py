"""Which clients train side by side: a function of the request alone, so that results do not depend on workers."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from muster.core.arrays import Ints
from muster.training.base import LocalTraining

#: Largest share of the computed samples that may be padding (clients in a slice end their epochs at other steps).
PADDING_SHARE = 0.25
#: Bytes of parameters that are worked on together: more would not stay in a core's cache between two steps.
CACHED_BYTES = 4 * 1024**2
#: More clients than this gain nothing.
MAX_CLIENTS = 64
#: A request with enough clients is cut into this many slices at least, so that all workers have something to do.
FEWEST_SLICES = 4


def longest_slice(clients: int, parameters: int) -> int:
    """How many clients of a request train side by side at most."""
    return max(1, min(MAX_CLIENTS, CACHED_BYTES // (4 * parameters), math.ceil(clients / FEWEST_SLICES)))


def cut(sizes: Ints, training: LocalTraining, longest: int) -> list[slice]:
    """Slices of a request whose clients have these numbers of samples, in descending order."""
    slices, start, counts, ascending = [], 0, sizes.tolist(), -sizes
    while start < len(sizes):
        # Nothing is padded among equals, and most requests have no others.
        equals = int(np.searchsorted(ascending, -counts[start], side="right")) - start
        stop, padded = start + min(equals, longest), None
        while stop < min(len(sizes), start + longest):
            padded = padded or _Padded(counts[start], equals, training)
            if not padded.admits(counts[stop]):
                break
            stop += 1
        slices.append(slice(start, stop))
        start = stop
    return slices


class _Padded:
    """How many samples a slice computes with, and how many of them are padding."""

    def __init__(self, size: int, equals: int, training: LocalTraining) -> None:
        self._training, self._widest = training, batch_sizes(size, training)
        self._active = np.full(len(self._widest), equals)
        self._real = equals * int(self._widest.sum())

    def admits(self, size: int) -> bool:
        """Take one more client in, unless that makes too much padding."""
        own = batch_sizes(size, self._training)
        widest, active = self._widest.copy(), self._active.copy()
        np.maximum(widest[: len(own)], own, out=widest[: len(own)])
        active[: len(own)] += 1
        real = self._real + int(own.sum())
        if real < (1 - PADDING_SHARE) * int(widest @ active):
            return False
        self._widest, self._active, self._real = widest, active, real
        return True


@lru_cache(maxsize=4096)
def batch_sizes(size: int, training: LocalTraining) -> Ints:
    """How many samples each local step of a client has."""
    epoch = np.full(training.epoch_for(size), training.batch_size, dtype=np.int64)
    epoch[-1] = training.epoch_samples(size) - training.batch_size * (len(epoch) - 1)
    sizes = np.resize(epoch, training.steps_for(size))
    sizes.flags.writeable = False
    return sizes
