"""All inner products between movements in one pass, from which every similarity follows.

Distances come out of inner products by subtraction, so precision matters. Large matrices are multiplied in
float32, block by block with float64 sums between blocks; where that cannot be trusted (two movements almost equal,
numbers beyond the range of float32 squares), the pass is repeated in float64. Neither makes a copy of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.aggregation._blocks import cached_width, column_blocks
from muster.core.arrays import Floats, Ints, Vector
from muster.core.randomness import generator

#: Matrices with fewer entries go straight to float64: it costs next to nothing there.
SMALL = 2**22
#: A squared distance below this share of the squared norms has lost too many digits in float32.
CANCELLED = 1e-2
#: A squared distance below this share of the squared norms is zero as far as float64 can tell.
RESOLUTION = 1e-13
#: Mean squares outside this range come near float32's underflow and overflow.
SAFE_MEAN_SQUARE = (1e-28, 1e28)

_BLOCK = 65536
#: Rows that a sketch takes at once, to stay in the cache.
_ROWS = 64


@dataclass(frozen=True)
class Shifts:
    """What rows are relative to, if not all to the same point: row k has shift `which[k]` added (−1: none)."""

    vectors: Vector
    which: Ints

    @property
    def summands(self) -> Floats:
        """Each shifted row as a sum of rows and shifts: a row of ones and zeros over [rows; shifts]."""
        count = len(self.which)
        matrix = np.zeros((count, count + len(self.vectors)))
        matrix[np.arange(count), np.arange(count)] = 1
        shifted = np.flatnonzero(self.which >= 0)
        matrix[shifted, count + self.which[shifted]] = 1
        return matrix


@dataclass(frozen=True)
class InnerProducts:
    """⟨Δ_i, Δ_j⟩, ⟨Δ_i, w⟩ and ⟨w, w⟩ for rows Δ and a reference w."""

    gram: Floats
    products: Floats
    reference: float
    #: Where rows were shifted: the squared lengths before, and the squares that rounding is relative to.
    own_squares: Floats | None = None
    scale: Floats | None = None

    @property
    def squared_distances(self) -> Floats:
        return squared_distances(self.gram, self.scale)

    @property
    def squared_lengths(self) -> Floats:
        """Of the rows themselves, without shifts."""
        return np.diagonal(self.gram) if self.own_squares is None else self.own_squares

    def shifted(self, shifts: Shifts) -> InnerProducts:
        """Of the rows with their shifts, where this is of rows and shifts, one under the other."""
        summands, count = shifts.summands, len(shifts.which)
        squares = np.diagonal(self.gram)
        return InnerProducts(
            summands @ self.gram @ summands.T,
            summands @ self.products,
            self.reference,
            own_squares=squares[:count],
            scale=summands @ squares,
        )


def inner_products(rows: Vector, reference: Vector | None = None, shifts: Shifts | None = None) -> InnerProducts:
    """One pass over the matrix; the reference may be left out when only the rows matter.

    With shifts, it is of the shifted rows: from one matrix of inner products of rows and shifts together.
    """
    reference = np.zeros(0, dtype=np.float32) if reference is None else reference
    below = None if shifts is None else shifts.vectors
    if rows.size > SMALL:
        fast = _pass(rows, below, reference, np.float32, _BLOCK)
        if _trustworthy(fast.gram, rows.shape[1]):
            if shifts is None:
                return fast
            moved = fast.shifted(shifts)
            if _apart(moved.gram, moved.scale):
                return moved
    exact = _pass(rows, below, reference, np.float64, cached_width(len(rows)))
    return exact if shifts is None else exact.shifted(shifts)


def _pass(
    rows: Vector, below: Vector | None, reference: Vector, dtype: type[np.floating[Any]], width: int
) -> InnerProducts:
    count = len(rows) + (0 if below is None else len(below))
    gram, products = np.zeros((count, count)), np.zeros(count)
    squared = 0.0
    # Overflow in float32 is expected here: the caller notices it and repeats the pass in float64.
    with np.errstate(over="ignore", invalid="ignore"):
        for block in column_blocks(rows.shape[1], width):
            part: npt.NDArray[np.floating[Any]] = rows[:, block].astype(dtype, copy=False)
            if below is not None:
                part = np.concatenate([part, below[:, block].astype(dtype, copy=False)])
            gram += part @ part.T
            if len(reference):
                along: npt.NDArray[np.floating[Any]] = reference[block].astype(dtype, copy=False)
                products += part @ along
                squared += float(along @ along)
    return InnerProducts(gram, products, squared)


def _trustworthy(gram: Floats, columns: int) -> bool:
    squares = np.diagonal(gram)
    low, high = SAFE_MEAN_SQUARE
    if not (np.isfinite(gram).all() and squares.min() > low * columns and squares.max() < high * columns):
        return False
    return _apart(gram)


def _apart(gram: Floats, scale: Floats | None = None) -> bool:
    """Whether all rows are far enough apart for float32 to resolve their distances."""
    scale = np.diagonal(gram) if scale is None else scale
    smallest = squared_distances(gram) + np.diag(np.full(len(gram), np.inf))
    return bool((smallest >= CANCELLED * np.add.outer(scale, scale)).all())


def squared_distances(gram: Floats, scale: Floats | None = None) -> Floats:
    """‖x_i − x_j‖² from inner products; exactly zero for equal rows, never negative.

    `scale`: squares that rounding is relative to, where the rows' own are the small difference of larger ones.
    """
    squares = np.diagonal(gram)
    sums = np.add.outer(squares, squares)
    distances = sums - 2 * gram
    # What is left of a difference of equal rows is rounding, which must not count as a distance.
    rounding = RESOLUTION * (sums if scale is None else np.add.outer(scale, scale))
    distances[distances < rounding] = 0.0
    np.fill_diagonal(distances, 0.0)
    return distances


def sketched(rows: Vector, dimension: int, seed: int = 0) -> Floats:
    """A random projection of the rows to `dimension` numbers that preserves inner products on average.

    Every entry is added with a random sign to one of `dimension` places: columns are taken in groups of that many,
    and each group is rotated by a random amount, so two entries share a place with probability at most 1/dimension
    (a count sketch; Charikar et al., 2002). Hence E⟨Sx, Sy⟩ = ⟨x, y⟩ with variance at most 2‖x‖²‖y‖²/dimension,
    and by Chebyshev's inequality a squared distance is within a factor 1 ± ε with probability at least
    1 − 2/(ε²·dimension). One pass over the matrix; no copy of it.
    """
    rng = generator(seed, "sketch", dimension)
    result = np.zeros((len(rows), dimension))
    for block in column_blocks(rows.shape[1], dimension):
        width = block.stop - block.start
        bits = np.unpackbits(np.frombuffer(rng.bytes((width + 7) // 8), np.uint8))[:width]
        signs = 2 * bits.astype(np.float32) - 1
        shift = int(rng.integers(dimension))
        before_end = min(width, dimension - shift)
        for group in column_blocks(len(rows), _ROWS):
            signed = rows[group, block] * signs
            result[group, shift : shift + before_end] += signed[:, :before_end]
            result[group, : width - before_end] += signed[:, before_end:]
    return result


def sketched_inner_products(
    rows: Vector, reference: Vector, dimension: int, shifts: Shifts | None = None
) -> InnerProducts:
    """As `inner_products`, with those between rows estimated from a sketch; those with the reference are exact."""
    parts = [rows] if shifts is None else [rows, shifts.vectors]
    products, squared = [np.zeros(len(part)) for part in parts], 0.0
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        along = reference[block].astype(np.float64)
        for at, part in enumerate(parts):
            products[at] += part[:, block].astype(np.float64) @ along
        squared += float(along @ along)
    small = np.concatenate([sketched(part, dimension) for part in parts])
    estimated = InnerProducts(small @ small.T, np.concatenate(products), squared)
    return estimated if shifts is None else estimated.shifted(shifts)
