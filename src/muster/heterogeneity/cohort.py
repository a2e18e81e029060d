"""What a chosen group of clients looks like when its data are put together: diagnostics of a selection."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.heterogeneity.metrics import COMPONENTS


def imbalance(histograms: Floats | Ints) -> float:
    """Squared distance of the labels of all given clients (one row each) together from the uniform distribution.

    The quadratic class-imbalance degree (QCID) of Zhang et al. (2023).
    """
    pooled = np.atleast_2d(histograms).sum(axis=0, dtype=np.float64)
    return float(((pooled / pooled.sum() - 1 / len(pooled)) ** 2).sum())


def triplet_correlations(estimated: Floats, true: Floats) -> dict[str, float]:
    """Pearson's r between estimated and true CI, AI, SC over clients; NaN where one of them does not vary."""
    result = {}
    for name, guess, truth in zip(COMPONENTS, np.transpose(estimated), np.transpose(true), strict=True):
        varies = np.ptp(guess) > 0 and np.ptp(truth) > 0
        result[name] = float(np.corrcoef(guess, truth)[0, 1]) if varies else float("nan")
    return result
