"""Weighted sampling that is correct with zero, non-finite and too few weights, and fast for millions."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints


def weighted_sample(weights: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Positions of `count` distinct items, drawn one at a time with probability ∝ weight.

    The first `count` arrivals of independent exponential clocks with these rates have exactly that law, so one
    pass over the weights replaces `count` renormalised draws. Non-finite and negative weights count as zero.
    When fewer than `count` weights are positive, all of those are taken and the rest is filled uniformly.
    """
    weights = np.asarray(weights, dtype=np.float64)
    total = len(weights)
    if count >= total:
        return np.arange(total)
    rates = np.where(np.isfinite(weights) & (weights > 0), weights, 0.0)
    positive = np.flatnonzero(rates)
    if len(positive) <= count:
        rest = np.setdiff1d(np.arange(total), positive, assume_unique=True)
        filled = rng.choice(rest, size=count - len(positive), replace=False)
        return np.concatenate([positive, filled])
    # Logarithms keep tiny rates apart where the arrival times themselves would overflow.
    arrivals = np.log(rng.standard_exponential(len(positive))) - np.log(rates[positive])
    return positive[np.argpartition(arrivals, count - 1)[:count]]
