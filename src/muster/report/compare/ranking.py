"""Methods over several problems: mean ranks, Friedman's test, and Nemenyi's critical difference (Demšar, 2006).

A problem counts once, with each method's mean over seeds: seeds of one problem are not independent problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from muster.core.arrays import Floats, Ints
from muster.report.tables import Better

#: The chance of a false alarm that people accept.
LEVEL = 0.05
#: Means that are equal on paper differ in the last bits.
_DECIMALS = 12


@dataclass(frozen=True)
class Ranking:
    """Methods ranked within each problem, 1 being the best; equal ones share the mean of their places."""

    methods: tuple[str, ...]
    #: problems × methods.
    ranks: Floats
    #: Mean over problems, one per method.
    mean: Floats
    #: In how many problems no method was better.
    wins: Ints
    #: p of Friedman's test that all methods are alike; NaN for fewer than three methods or two problems.
    friedman_p: float
    #: Mean ranks that differ by less cannot be told apart; NaN for fewer than two methods or problems.
    critical: float

    @property
    def problems(self) -> int:
        return len(self.ranks)

    @property
    def decidable(self) -> bool:
        """Whether any two mean ranks could be far enough apart at all."""
        return len(self.methods) - 1 >= self.critical


def ranking(methods: tuple[str, ...], scores: Floats, better: Better) -> Ranking:
    """Rank `scores` (problems × methods, none missing)."""
    rounded = np.round(np.asarray(scores, dtype=np.float64), _DECIMALS)
    ranks = rankdata(-better.value * rounded, axis=1)
    best = ranks == ranks.min(axis=1, keepdims=True)
    problems, count = ranks.shape
    return Ranking(
        methods,
        ranks,
        ranks.mean(axis=0),
        best.sum(axis=0),
        friedman_p(ranks),
        critical_difference(count, problems),
    )


def friedman_p(ranks: Floats) -> float:
    """Friedman's test of problems × methods, corrected for ties; 1 where everything is tied."""
    problems, methods = ranks.shape
    if methods < 3 or problems < 2:
        return math.nan
    if (ranks == ranks[:, :1]).all():
        return 1.0
    return float(friedmanchisquare(*ranks.T).pvalue)


def critical_difference(methods: int, problems: int, level: float = LEVEL) -> float:
    """How far apart two mean ranks must be, after Nemenyi, if all pairs of methods are looked at."""
    if methods < 2 or problems < 1:
        return math.nan
    quantile = float(studentized_range.ppf(1 - level, methods, math.inf))
    return quantile / math.sqrt(2) * _standard_error(methods, problems)


def nemenyi_p(mean_ranks: Floats, problems: int) -> Floats:
    """p of every pair of methods, corrected for all pairs."""
    mean_ranks = np.asarray(mean_ranks, dtype=np.float64)
    gaps = np.abs(mean_ranks[:, None] - mean_ranks)
    statistic = gaps * math.sqrt(2) / _standard_error(len(mean_ranks), problems)
    return np.asarray(studentized_range.sf(statistic, len(mean_ranks), math.inf), dtype=np.float64)


def _standard_error(methods: int, problems: int) -> float:
    return math.sqrt(methods * (methods + 1) / (6 * problems))


def alike(mean_ranks: Floats, critical: float) -> list[tuple[int, int]]:
    """The longest stretches, in ascending order of rank, whose ends are not further apart than `critical`.

    First and last place of each, of at least two methods; none lies within another.
    """
    ascending = np.sort(np.asarray(mean_ranks, dtype=np.float64))
    stretches: list[tuple[int, int]] = []
    for first in range(len(ascending)):
        last = int(np.searchsorted(ascending, ascending[first] + critical, side="right")) - 1
        if last > first and (not stretches or last > stretches[-1][1]):
            stretches.append((first, last))
    return stretches
