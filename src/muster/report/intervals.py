"""Confidence intervals of means, the same for the same values: Student's of few values, a bootstrap of many.

A bootstrap of few values is narrower than it says: of three it contains the mean in seven cases of ten, not in
nineteen of twenty. Where three differences have the same sign, which chance does to one of four, it excludes zero.
docs/compare.md has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy.stats import bootstrap, t

from muster.core.arrays import Floats
from muster.core.randomness import generator

#: How sure an interval is meant to be.
CONFIDENCE = 0.95
#: From this many values on the interval is a bootstrap's.
MANY_VALUES = 30
_RESAMPLES = 9_999
_ROUNDING = 1e-12
#: For a band around a curve, which is read by eye.
_BAND_RESAMPLES = 999


def mean_interval(values: Floats, level: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the mean: Student's, from `MANY_VALUES` on SciPy's BCa bootstrap; NaN for fewer than two.

    It depends on the values alone, not on their order.
    """
    return _interval(tuple(sorted(map(float, values))), level)


@lru_cache(maxsize=20_000)
def _interval(values: tuple[float, ...], level: float) -> tuple[float, float]:
    if len(values) < 2 or any(map(math.isnan, values)):
        return (math.nan, math.nan)
    low, high = _intervals(np.array(values)[:, None], level, _RESAMPLES)
    return float(low[0]), float(high[0])


def mean_band(values: Floats, level: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """The same for every column of runs × points; both ends are the value where there is a single run."""
    if len(values) < 2:
        return values[0], values[0]
    return _intervals(np.sort(values, axis=0), level, _BAND_RESAMPLES)


def interval_words(counts: Iterable[int]) -> str:
    """What kind of interval the mean of this many values gets, in a few words."""
    many = {count >= MANY_VALUES for count in counts}
    if many == {True}:
        return "BCa bootstrap"
    return f"Student's below {MANY_VALUES} values, else BCa bootstrap" if True in many else "Student's"


def _intervals(values: Floats, level: float, resamples: int) -> tuple[Floats, Floats]:
    """Of the columns, each in ascending order."""
    low, high = values[0].copy(), values[-1].copy()
    # What differs by rounding alone has no interval beyond its own ends.
    apart = high - low > _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    if not apart.any():
        return low, high
    # An interval moves and stretches with the values: between 0 and 1 no square vanishes.
    start, width = low[apart], (high - low)[apart]
    scaled = (values[:, apart] - start) / width
    ends = student(scaled, level) if len(values) < MANY_VALUES else bootstrapped(scaled, level, resamples)
    low[apart], high[apart] = (start + width * end for end in ends)
    return low, high


def student(values: Floats, level: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Student's intervals of the columns' means."""
    count, mean = len(values), np.asarray(values.mean(axis=0))
    half = np.asarray(t.ppf((1 + level) / 2, count - 1) * values.std(axis=0, ddof=1) / math.sqrt(count))
    return mean - half, mean + half


def bootstrapped(
    values: Floats, level: float = CONFIDENCE, resamples: int = _BAND_RESAMPLES
) -> tuple[Floats, Floats]:
    """BCa bootstrap intervals of the columns' means."""
    ends = bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="BCa",
        axis=0,
        vectorized=True,
        rng=generator(0, "bootstrap", len(values)),
    ).confidence_interval
    return np.asarray(ends.low), np.asarray(ends.high)
