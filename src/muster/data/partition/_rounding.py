"""Turning proportions into whole numbers of samples, and the Dirichlet draws that the proportions come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.errors import ConfigError

#: What happens when a draw leaves no mass on the clients that still have room.
OnDegenerate = Literal["redraw", "ref"]

#: A bound on the random numbers that all tries of one partition may use together (some ten seconds of work).
_DRAWS = 400_000_000
_REDRAWS = 100


def check_alpha(alpha: float, key: str = "partition.alpha") -> None:
    if not alpha > 0:
        raise ConfigError(f"bad value for '{key}': {alpha}", expected="a positive number (inf: equal proportions)")


def symmetric_dirichlet(alpha: float, size: int, rng: np.random.Generator) -> Floats:
    """One draw from Dir(alpha, …, alpha); an infinite alpha gives equal proportions."""
    if np.isinf(alpha):
        return np.full(size, 1.0 / size)
    return rng.dirichlet(np.full(size, alpha))


def cut(proportions: Floats, total: int) -> Ints:
    """Whole numbers that sum to `total`: the distances between the cut points ⌊total · cumsum(proportions)⌋."""
    # The small number keeps sums such as 0.1 + 0.2 + … from falling short of the whole number that they mean.
    points = np.floor(np.cumsum(proportions) * total + 1e-9).astype(np.int64)
    np.minimum(points, total, out=points)
    points[-1] = total
    return np.ediff1d(points, to_begin=points[0])


def largest_remainder(weights: Floats, total: int | Ints) -> Ints:
    """Whole numbers that sum to `total` and differ from total · weights / Σ weights by less than one.

    What rounding down leaves over goes to the largest remainders, the first of equals first. Works on the last
    axis: a matrix of weights and one total a row give one result a row.
    """
    totals = np.asarray(total)[..., None]
    quotas: Floats = weights / weights.sum(axis=-1, keepdims=True) * totals
    # As above, a quota that means a whole number must not fall short of it by rounding.
    counts: Ints = np.floor(quotas + 1e-9).astype(np.int64)
    left = totals - counts.sum(axis=-1, keepdims=True)
    rank = np.argsort(np.argsort(counts - quotas, axis=-1, kind="stable"), axis=-1, kind="stable")
    counts += rank < left
    return counts


def even(total: int, parts: int) -> Ints:
    """`total` in nearly equal parts, the first ones larger by one."""
    counts = np.full(parts, total // parts, dtype=np.int64)
    counts[: total % parts] += 1
    return counts


def shares_with_room(
    rooms: Sequence[Bools], alpha: float, rng: np.random.Generator, on_degenerate: OnDegenerate = "redraw"
) -> list[Floats]:
    """One draw from Dir(alpha, …, alpha), restricted to the clients with room and renormalised, for each room.

    With a tiny alpha a draw may put all of its mass on clients without room. Then it is drawn again, at most
    100 times, and after that the clients with room share equally. "ref" reproduces what a quotient 0/0 does in
    the code of Chen and Vikalo (2024): the last client gets everything.
    """
    for _ in range(_REDRAWS):
        draw = symmetric_dirichlet(alpha, len(rooms[0]), rng)
        kept = [np.where(room, draw, 0.0) for room in rooms]
        if on_degenerate == "ref" or all(part.any() for part in kept):
            break
    return [_normalised(part, room, on_degenerate) for part, room in zip(kept, rooms, strict=True)]


def _normalised(kept: Floats, room: Bools, on_degenerate: OnDegenerate) -> Floats:
    if kept.any():
        shares: Floats = kept / kept.sum()
    elif on_degenerate == "ref":
        shares = np.zeros(len(room))
        shares[-1] = 1.0
    else:
        shares = room / room.sum()
    return shares


def bounded_tries(max_tries: int, draws: int) -> int:
    """How often a partition may be tried when one try uses `draws` random numbers."""
    return max(1, min(max_tries, _DRAWS // max(1, draws)))
