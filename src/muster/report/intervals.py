"""Confidence intervals of means over seeds, the same for the same values: SciPy's BCa bootstrap, and Student's."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.stats import bootstrap

from muster.core.arrays import Floats
from muster.core.randomness import generator

#: How sure an interval is meant to be.
CONFIDENCE = 0.95
#: Bootstrap intervals of fewer values are clearly narrower than they say.
FEW_VALUES = 10
_RESAMPLES = 9_999
_ROUNDING = 1e-12
#: For a band around a curve, which is read by eye.
_BAND_RESAMPLES = 999


def mean_interval(values: Floats, level: float = CONFIDENCE) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval of the mean; NaN for fewer than two values.

    It depends on the values alone, not on their order.
    """
    return _interval(tuple(sorted(map(float, values))), level)


@lru_cache(maxsize=20_000)
def _interval(values: tuple[float, ...], level: float) -> tuple[float, float]:
    if len(values) < 2 or any(map(math.isnan, values)):
        return (math.nan, math.nan)
    low, high = _bootstrapped(np.array(values)[:, None], level, _RESAMPLES)
    return float(low[0]), float(high[0])


def student_interval(values: Floats, level: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean, for values so few that a bootstrap is too narrow; NaN for fewer than two."""
    if len(values) < 2 or np.isnan(values).any():
        return (math.nan, math.nan)
    mean = float(values.mean())
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return (mean - half, mean + half)


def mean_band(values: Floats, level: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """The same for every column of runs × points; both ends are the value where there is a single run."""
    if len(values) < 2:
        return values[0], values[0]
    return _bootstrapped(np.sort(values, axis=0), level, _BAND_RESAMPLES)


def _bootstrapped(values: Floats, level: float, resamples: int) -> tuple[Floats, Floats]:
    """Intervals of the columns, each in ascending order."""
    low, high = values[0].copy(), values[-1].copy()
    # What differs by rounding alone has no interval beyond its own ends.
    apart = high - low > _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    if not apart.any():
        return low, high
    # An interval moves and stretches with the values: between 0 and 1 no square vanishes.
    start, width = low[apart], (high - low)[apart]
    found = bootstrap(
        ((values[:, apart] - start) / width,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="BCa",
        axis=0,
        vectorized=True,
        rng=generator(0, "bootstrap", len(values)),
    ).confidence_interval
    low[apart], high[apart] = start + width * found.low, start + width * found.high
    return low, high
