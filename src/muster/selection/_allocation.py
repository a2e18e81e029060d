"""Sharing a fixed number of slots among groups."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints

#: Remainders closer than this are ties: they differ only by rounding of the shares.
_DECIMALS = 9


def remainders_within_caps(shares: Floats, total: int, caps: Ints, at_least: int = 0) -> Ints:
    """How many of `total` slots each group gets, in proportion to `shares`, never more than its cap.

    Slot after slot goes to the group with room that is furthest below its exact share; without caps that is
    Hamilton's method (whole parts first, then the largest fractional parts), with caps it hands on what a full
    group cannot take. Groups with fewer than `at_least` slots are served before all others, while slots last.
    Ties go to the first group: callers put the groups in random order. Shares that are all zero mean shares
    in proportion to the caps.
    """
    caps = np.asarray(caps, dtype=np.int64)
    shares = np.where(np.isfinite(shares) & (np.asarray(shares) > 0), shares, 0.0)
    if not shares.sum() > 0:
        shares = caps.astype(np.float64)
    slots = np.zeros(len(caps), dtype=np.int64)
    if total <= 0 or not caps.sum() > 0:
        return slots
    exact = total * shares / shares.sum()
    for _ in range(min(total, int(caps.sum()))):
        room = slots < caps
        urgent = room & (slots < at_least)
        candidates = urgent if urgent.any() else room
        missing = np.where(candidates, np.round(exact - slots, _DECIMALS), -np.inf)
        slots[np.argmax(missing)] += 1
    return slots
