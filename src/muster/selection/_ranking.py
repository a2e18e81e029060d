"""Taking the best few of many, with ties broken at random."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints


def lowest(values: Floats | Ints, count: int, rng: np.random.Generator | None) -> Ints:
    """Positions of the `count` smallest values, ascending. Linear in the number of values.

    Where equal values compete for the last places, `rng` draws among them, and only then. Without a generator the
    first ones win: for orders by id that were asked for.
    """
    if count >= len(values):
        return np.arange(len(values))
    if count < 1:
        return np.zeros(0, dtype=np.int64)
    level = _level(values, count)
    below, equal = np.flatnonzero(values < level), np.flatnonzero(values == level)
    missing = count - len(below)
    if rng is not None and missing < len(equal):
        equal = rng.choice(equal, size=missing, replace=False)
    return np.sort(np.concatenate([below, equal[:missing]]))


def _level(values: Floats | Ints, count: int) -> float:
    """The `count`-th smallest value."""
    if np.issubdtype(values.dtype, np.integer) and np.ptp(values) <= len(values):
        # Counts of participations have few distinct values, with which partitioning is several times slower.
        start = int(values.min())
        return start + int(np.searchsorted(np.cumsum(np.bincount(values - start)), count))
    return float(np.partition(values, count - 1)[count - 1])


def highest(scores: Floats, count: int, rng: np.random.Generator | None) -> Ints:
    """Positions of the `count` largest scores, ascending; a score that is not a number comes last."""
    return lowest(np.where(np.isnan(scores), np.inf, -scores), count, rng)
