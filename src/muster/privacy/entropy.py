"""Noise that no one can subtract: every number comes from the operating system, none from the experiment's seed.

A generator that is seeded with good entropy once would be quicker, but those of NumPy are not made to withstand
an observer who computes from some of their numbers what the others were.
"""

from __future__ import annotations

import secrets

import numpy as np
from scipy.special import ndtri

from muster.core.arrays import Floats


class SystemNoise:
    """Draws as NumPy's generators do, without a seed."""

    def laplace(self, loc: float, scale: float, size: int) -> Floats:
        """Two-sided exponential: the size from 52 bits, the sign from another one."""
        bits = _bits(size)
        sign = np.where(bits >> np.uint64(63), 1.0, -1.0)
        return np.asarray(loc + scale * sign * -np.log(_uniform(bits)))

    def normal(self, loc: float, scale: float, size: int) -> Floats:
        return np.asarray(loc + scale * ndtri(_uniform(_bits(size))))


def _bits(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)


def _uniform(bits: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Floats:
    """From the lower 52 bits: never 0 and never 1, and every value as far from 0 as another one is from 1."""
    return np.asarray(((bits & np.uint64(2**52 - 1)).astype(np.float64) + 0.5) / 2.0**52)
