"""How heterogeneous a federation is: class imbalance, attribute imbalance, spurious correlation, sizes.

The three measures of one table of counts (class × attribute) are those of Yang et al. (2023); taking them of the
pooled table and as the mean over clients gives the six metrics of Németh et al. (2025).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.core.arrays import Floats
from muster.core.errors import DataError

#: Clients per block: the tables of a block and their logarithms stay in the processor's cache.
_BLOCK = 1 << 13

COMPONENTS = ("CI", "AI", "SC")


def summary(counts: np.ndarray[Any, Any]) -> dict[str, float]:
    """The six metrics of counts with shape (clients, classes, attributes).

    GCI, GAI, GSC: class imbalance, attribute imbalance and spurious correlation of all data together.
    CCI, CAI, CSC: the means of the same over clients, each client counting once.
    """
    counts = _checked(counts)
    together = triplet(counts.sum(axis=0))
    apart = triplets(counts).mean(axis=0)
    values = {f"G{name}": float(value) for name, value in zip(COMPONENTS, together, strict=True)}
    return values | {f"C{name}": float(value) for name, value in zip(COMPONENTS, apart, strict=True)}


def triplets(counts: np.ndarray[Any, Any]) -> Floats:
    """(CI, AI, SC) of every client, shape (clients, 3), from counts of shape (clients, classes, attributes).

    CI = 1 − H(Y)/log|Y| and AI = 1 − H(A)/log|A| (0 where there is one class or one attribute), SC = 2·I(Y;A) /
    (H(Y) + H(A)) (0 where all samples share one class and one attribute).
    """
    counts = _checked(counts)
    result = np.empty((len(counts), 3))
    for start in range(0, len(counts), _BLOCK):
        result[start : start + _BLOCK] = _triplets(counts[start : start + _BLOCK].astype(np.float64))
    return result


def triplet(matrix: np.ndarray[Any, Any]) -> Floats:
    """(CI, AI, SC) of one table of counts, classes × attributes."""
    return np.asarray(triplets(np.asarray(matrix)[None])[0])


def effective_clients(sizes: np.ndarray[Any, Any]) -> float:
    """exp(entropy of the shares): the number of equal clients with the same entropy."""
    sizes = np.asarray(sizes, dtype=np.float64)
    if not sizes.sum() > 0:
        raise DataError("the effective number of clients needs sizes", expected="at least one positive size")
    return float(np.exp(entropies(sizes[None])[0]))


def entropies(counts: Floats) -> Floats:
    """The entropy in nats of every row of counts, exact also where nearly all counts lie in one cell."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / totals
    terms = shares * np.log(np.where(shares > 0, shares, 1.0))
    # log(share) loses digits near 1, where the small remainder is known exactly from the counts.
    rows, cells = np.nonzero(shares > 0.5)
    rest = (totals[rows, 0] - counts[rows, cells]) / totals[rows, 0]
    terms[rows, cells] = shares[rows, cells] * np.log1p(-rest)
    return np.asarray(-terms.sum(axis=1))


def _triplets(counts: Floats) -> Floats:
    clients, classes, attributes = counts.shape
    # einsum adds over a short axis several times faster than sum does.
    of_class, of_attribute = entropies(np.einsum("kya->ky", counts)), entropies(np.einsum("kya->ka", counts))
    joint = entropies(counts.reshape(clients, -1))
    both = of_class + of_attribute
    correlation = np.zeros(clients)
    np.divide(2 * (both - joint), both, out=correlation, where=both > 0)
    ci = 1 - of_class / np.log(classes) if classes > 1 else np.zeros(clients)
    ai = 1 - of_attribute / np.log(attributes) if attributes > 1 else np.zeros(clients)
    return np.asarray(np.clip(np.stack([ci, ai, correlation], axis=1), 0.0, 1.0))


def _checked(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    counts = np.asarray(counts)
    if counts.ndim != 3 or 0 in counts.shape:
        raise DataError(
            f"counts have the shape {counts.shape}", expected="(clients, classes, attributes), none of them zero"
        )
    # One pass finds negative numbers, NaN and infinity alike.
    smallest, largest = counts.min(), counts.max()
    if not (smallest >= 0 and largest < np.inf):
        raise DataError(
            f"counts range from {smallest} to {largest}", expected="finite numbers that are not negative"
        )
    empty = np.flatnonzero(~counts.any(axis=(1, 2)))
    if len(empty):
        raise DataError(
            f"{len(empty)} of {len(counts)} clients have no samples (first: client {empty[0]})",
            expected="at least one sample per client",
        )
    return counts
