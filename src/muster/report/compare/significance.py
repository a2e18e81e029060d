"""Paired tests over seeds: the same seed gives two methods the same data, partition and initial model.

With few seeds little can be shown, and these functions say so: the smallest p that a test can reach at all is part
of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from muster.core.arrays import Floats
from muster.report.intervals import CONFIDENCE, mean_interval

#: Differences of shares that are equal on paper differ in the last bits.
_DECIMALS = 12


@dataclass(frozen=True)
class PairedTest:
    """One method against the baseline."""

    #: Method − baseline, seed by seed.
    differences: Floats
    #: Two-sided p of Wilcoxon's signed-rank test, exact.
    p: float
    #: The smallest p that this many seeds can give.
    smallest_p: float
    #: 95 % interval of the mean difference over seeds.
    interval: tuple[float, float]


def paired_test(method: Floats, baseline: Floats, level: float = CONFIDENCE) -> PairedTest:
    """Compare values that belong together pair by pair."""
    differences = np.round(np.asarray(method, dtype=np.float64) - np.asarray(baseline), _DECIMALS)
    return PairedTest(
        differences,
        signed_rank_p(differences),
        smallest_p(len(differences)),
        mean_interval(differences, level),
    )


def signed_rank_p(differences: Floats) -> float:
    """Two-sided p of the signed-rank statistic over all 2ⁿ assignments of signs; zero differences are left out.

    Exact with ties too, where SciPy's exact form is not: it takes the ranks for 1, …, n.
    """
    moved = np.round(differences, _DECIMALS)
    moved = moved[moved != 0]
    # Mid-ranks are multiples of a half.
    ranks = np.rint(2 * rankdata(np.abs(moved))).astype(np.int64)
    ways = np.ones(1)
    for rank in ranks:
        ways = np.convolve(ways, np.bincount([0, rank]))
    positive = int(ranks[moved > 0].sum())
    smaller_side = min(positive, int(ranks.sum()) - positive)
    return float(min(1.0, 2 * ways[: smaller_side + 1].sum() / ways.sum()))


def smallest_p(pairs: int) -> float:
    """What the two-sided test gives when all differences have the same sign: 2 of the 2ⁿ assignments."""
    return min(1.0, 2.0 ** (1 - pairs))


def holm(p_values: Floats) -> Floats:
    """Holm's step-down correction for several comparisons with one baseline. SciPy has only rates of discovery."""
    p_values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(1.0, stepped)
    return corrected
