"""What a chosen group of clients looks like when its data are put together: diagnostics of a selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.heterogeneity.divergences import js_divergence, pairwise
from muster.heterogeneity.metrics import COMPONENTS, entropies


def label_entropy(histograms: Floats) -> float:
    """Entropy in nats of the labels of all given clients together."""
    return float(entropies(np.asarray(histograms, dtype=np.float64).sum(axis=0)[None])[0])


def imbalance(histograms: Floats | Ints) -> float:
    """Squared distance of the labels of all given clients (one row each) together from the uniform distribution.

    The quadratic class-imbalance degree (QCID) of Zhang et al. (2023).
    """
    pooled = np.atleast_2d(histograms).sum(axis=0, dtype=np.float64)
    return float(((pooled / pooled.sum() - 1 / len(pooled)) ** 2).sum())


def smallest_group_share(counts: np.ndarray[Any, Any]) -> float:
    """Share of the rarest (class, attribute) cell in the pooled table of the given clients."""
    pooled = np.asarray(counts).sum(axis=0)
    return float(pooled.min() / pooled.sum())


def mean_divergence(histograms: Floats) -> float:
    """Mean Jensen–Shannon divergence in nats over the pairs of the given clients; 0 for a single one."""
    clients = len(histograms)
    return float(pairwise(histograms, js_divergence).sum() / (clients * (clients - 1))) if clients > 1 else 0.0


def overlap(one: Ints, other: Ints) -> float:
    """Jaccard index of two cohorts; 0 when both are empty."""
    union = len(np.union1d(one, other))
    return len(np.intersect1d(one, other)) / union if union else 0.0


def triplet_correlations(estimated: Floats, true: Floats) -> dict[str, float]:
    """Pearson's r between estimated and true CI, AI, SC over clients; NaN where one of them does not vary."""
    result = {}
    for name, guess, truth in zip(COMPONENTS, np.transpose(estimated), np.transpose(true), strict=True):
        varies = np.ptp(guess) > 0 and np.ptp(truth) > 0
        result[name] = float(np.corrcoef(guess, truth)[0, 1]) if varies else float("nan")
    return result
