"""Passes over a `clients × parameters` matrix in column blocks that stay in the cache.

Products and sums are made in float64, row by row: an entry of the result depends on the rows and their order,
never on where a block begins. So a stream of single rows and a whole matrix give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from muster.core.arrays import Floats, Vector

#: Columns in a block: two float64 rows of it fit into a core's second-level cache.
BLOCK = 32768


def column_blocks(columns: int, width: int = BLOCK) -> Iterator[slice]:
    """Slices of at most `width` that cover `columns` from left to right."""
    for start in range(0, columns, width):
        yield slice(start, min(start + width, columns))


def cached_width(rows: int) -> int:
    """Columns in a block of which a float64 copy of all rows fits into the cache, as far as that is sensible."""
    return min(BLOCK, max(512, 4 * BLOCK // rows))


def accumulate(total: Floats, rows: Vector, coefficients: Floats) -> None:
    """Add Σ coefficients[k] · rows[k] to `total`."""
    if len(total) > 1 and (len(rows) + 1) * len(total) <= 4 * BLOCK:
        _accumulate_small(total, rows, coefficients)
        return
    scratch = np.empty(min(BLOCK, len(total)))
    for block in column_blocks(len(total)):
        part = total[block]
        product = scratch[: len(part)]
        for row, coefficient in zip(rows[:, block], coefficients, strict=True):
            np.copyto(product, row)
            np.multiply(product, coefficient, out=product)
            np.add(part, product, out=part)


def _accumulate_small(total: Floats, rows: Vector, coefficients: Floats) -> None:
    """The same for a matrix of which a float64 copy fits into the cache: with many short rows, calls cost most."""
    terms = np.empty((len(rows) + 1, len(total)))
    terms[0] = total
    np.copyto(terms[1:], rows)
    np.multiply(terms[1:], coefficients[:, None], out=terms[1:])
    # Along the first axis NumPy adds row after row. (A single column it would add pairwise.)
    np.add.reduce(terms, axis=0, out=total)


def combination(rows: Vector, coefficients: Floats) -> Floats:
    """Σ coefficients[k] · rows[k]."""
    total = np.zeros(rows.shape[1])
    accumulate(total, rows, coefficients)
    return total


def norms(rows: Vector, order: int = 2) -> Floats:
    """The 1-norm or 2-norm of each row; float64, so that no finite row overflows."""
    totals = np.zeros(len(rows))
    for block in column_blocks(rows.shape[1]):
        for k, row in enumerate(rows[:, block]):
            wide = row.astype(np.float64)
            totals[k] += np.abs(wide).sum() if order == 1 else np.dot(wide, wide)
    return totals if order == 1 else np.sqrt(totals)
