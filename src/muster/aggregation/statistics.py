"""What the updates of a training look like: lengths, agreement, and how many clients really count."""

from __future__ import annotations

import numpy as np

from muster.aggregation._gram import inner_products
from muster.arrays import Floats, Vector


def effective_clients(weights: Floats) -> float:
    """exp of the entropy of normalised weights: m for m equal weights, 1 when one client decides."""
    positive = weights[weights > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def agreement(movements: Vector, weights: Floats) -> tuple[Floats, Floats]:
    """The length of each movement, and its cosine to the weighted mean movement (0 where one of them is zero)."""
    gram = inner_products(movements).gram
    lengths = np.sqrt(np.diagonal(gram))
    along = gram @ weights
    scale = lengths * np.sqrt(max(float(weights @ along), 0.0))
    return lengths, np.divide(along, scale, out=np.zeros_like(along), where=scale > 0)


def clipped_share(lengths: Floats, clip_norm: float | None) -> float:
    """Share of movements that are longer than the limit."""
    return 0.0 if clip_norm is None else float(np.mean(lengths > clip_norm))
