"""How much an answer to an older model counts: a factor for each staleness (Xie et al., 2019).

Staleness τ is the number of aggregations between a client's start and the use of its answer. Every factor is 1 for
τ = 0, so that none of them changes anything where all answers are fresh.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from muster.core.arrays import Floats, Ints

#: How the factor falls with staleness.
Discount: TypeAlias = Literal["constant", "polynomial", "hinge"]

#: The default of `a`.
DEFAULT_A: dict[Discount, float] = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}


def polynomial(staleness: Ints, a: float = 0.5) -> Floats:
    """(1 + τ)^−a.

    >>> polynomial(np.array([0, 1, 3])).round(4).tolist()
    [1.0, 0.7071, 0.5]
    """
    return np.power(1.0 + staleness.astype(np.float64), -a)


def hinge(staleness: Ints, a: float = 10.0, b: int = 4) -> Floats:
    """1 up to a staleness of b, then 1 / (a (τ − b) + 1).

    >>> hinge(np.array([0, 4, 5, 6]), a=10, b=4).round(4).tolist()
    [1.0, 1.0, 0.0909, 0.0476]
    """
    return 1.0 / (a * np.maximum(staleness - b, 0) + 1.0)


def discounts(kind: Discount, staleness: Ints, a: float | None = None, b: int = 4) -> Floats:
    """The factor of each answer; `a` None: 0.5 for a polynomial, 10 for a hinge."""
    a = DEFAULT_A[kind] if a is None else a
    if kind == "polynomial":
        return polynomial(staleness, a)
    return np.ones(len(staleness)) if kind == "constant" else hinge(staleness, a, b)
