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
from muster.core.arrays import Floats, Vector
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
class InnerProducts:
    """⟨Δ_i, Δ_j⟩, ⟨Δ_i, w⟩ and ⟨w, w⟩ for rows Δ and a reference w."""

    gram: Floats
    products: Floats
    reference: float

    @property
    def squared_distances(self) -> Floats:
        return squared_distances(self.gram)


def inner_products(rows: Vector, reference: Vector | None = None) -> InnerProducts:
    """One pass over the matrix; the reference may be left out when only the rows matter."""
    reference = np.zeros(0, dtype=np.float32) if reference is None else reference
    if rows.size > SMALL:
        fast = _pass(rows, reference, np.float32, _BLOCK)
        if _trustworthy(fast.gram, rows.shape[1]):
            return fast
    return _pass(rows, reference, np.float64, cached_width(len(rows)))


def _pass(rows: Vector, reference: Vector, dtype: type[np.floating[Any]], width: int) -> InnerProducts:
    gram, products = np.zeros((len(rows), len(rows))), np.zeros(len(rows))
    squared = 0.0
    # Overflow in float32 is expected here: the caller notices it and repeats the pass in float64.
    with np.errstate(over="ignore", invalid="ignore"):
        for block in column_blocks(rows.shape[1], width):
            part: npt.NDArray[np.floating[Any]] = rows[:, block].astype(dtype, copy=False)
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
    smallest = squared_distances(gram) + np.diag(np.full(len(gram), np.inf))
    return bool((smallest >= CANCELLED * np.add.outer(squares, squares)).all())


def squared_distances(gram: Floats) -> Floats:
    """‖x_i − x_j‖² from inner products; exactly zero for equal rows, never negative."""
    squares = np.diagonal(gram)
    sums = np.add.outer(squares, squares)
    distances = sums - 2 * gram
    # What is left of a difference of equal rows is rounding, which must not pass for a distance.
    distances[distances < RESOLUTION * sums] = 0.0
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


def sketched_inner_products(rows: Vector, reference: Vector, dimension: int) -> InnerProducts:
    """As `inner_products`, with those between rows estimated from a sketch; those with the reference are exact."""
    products, squared = np.zeros(len(rows)), 0.0
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        along = reference[block].astype(np.float64)
        products += rows[:, block].astype(np.float64) @ along
        squared += float(along @ along)
    small = sketched(rows, dimension)
    return InnerProducts(small @ small.T, products, squared)
