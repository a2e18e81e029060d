"""Bringing scores of different kinds to one scale."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats

#: A range of values below this is no range.
_FLAT = 1e-12


def min_max(values: Floats) -> Floats:
    """Scaled to [0, 1]; all zero where the values hardly differ; 0 for what is not a number."""
    finite = np.isfinite(values)
    scaled = np.zeros(len(values))
    if finite.any():
        low, high = values[finite].min(), values[finite].max()
        if high - low >= _FLAT:
            scaled[finite] = (values[finite] - low) / (high - low)
    return scaled
