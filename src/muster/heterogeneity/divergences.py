"""Distances between label distributions: Jensen–Shannon, Hellinger, total variation, earth mover's.

Every function takes counts or shares with the classes on the last axis, normalises them, and broadcasts over the
other axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.special import rel_entr

from muster.core.arrays import Floats
from muster.core.errors import DataError

Divergence = Callable[[Floats, Floats], Floats]


def js_divergence(p: Floats, q: Floats, unit: Literal["nats", "bits"] = "nats") -> Floats:
    """Jensen–Shannon divergence: at most log 2 nats or 1 bit."""
    p, q = shares(p), shares(q)
    middle = (p + q) / 2
    nats = np.maximum((rel_entr(p, middle) + rel_entr(q, middle)).sum(axis=-1) / 2, 0.0)
    return np.asarray(nats / np.log(2) if unit == "bits" else nats)


def js_distance(p: Floats, q: Floats) -> Floats:
    """Square root of the Jensen–Shannon divergence in nats: a metric."""
    return np.sqrt(js_divergence(p, q))


def hellinger(p: Floats, q: Floats) -> Floats:
    """Hellinger distance, between 0 and 1."""
    return np.asarray(np.linalg.norm(np.sqrt(shares(p)) - np.sqrt(shares(q)), axis=-1) / np.sqrt(2))


def total_variation(p: Floats, q: Floats) -> Floats:
    """Half the sum of absolute differences, between 0 and 1."""
    return np.asarray(np.abs(shares(p) - shares(q)).sum(axis=-1) / 2)


def earth_mover(p: Floats, q: Floats) -> Floats:
    """Sum of absolute differences, which Zhao et al. (2018) call the earth mover's distance."""
    return 2 * total_variation(p, q)


def euclidean(p: Floats, q: Floats) -> Floats:
    """Euclidean distance of the shares."""
    return np.asarray(np.linalg.norm(shares(p) - shares(q), axis=-1))


def pairwise(histograms: Floats, divergence: Divergence = js_divergence) -> Floats:
    """The symmetric matrix of divergences between all rows, for heat maps: quadratic in their number."""
    rows = shares(histograms)
    matrix = np.zeros((len(rows), len(rows)))
    for i in range(len(rows) - 1):
        matrix[i, i + 1 :] = matrix[i + 1 :, i] = divergence(rows[i], rows[i + 1 :])
    return matrix


def to_pooled(histograms: Floats, divergence: Divergence = js_divergence) -> Floats:
    """The divergence of every client's labels from those of all clients together: linear in their number."""
    histograms = np.asarray(histograms, dtype=np.float64)
    return divergence(histograms, histograms.sum(axis=0))


def shares(counts: np.ndarray[Any, Any]) -> Floats:
    """Counts divided by their sum over the last axis."""
    counts = np.asarray(counts, dtype=np.float64)
    totals = counts.sum(axis=-1, keepdims=True)
    if not (totals > 0).all():
        raise DataError("a histogram without samples has no label distribution", expected="a positive count")
    return np.asarray(counts / totals)
