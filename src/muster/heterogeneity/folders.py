"""Counts from files on disk: a folder per client, in it one per class and, optionally, one per attribute."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from muster.core.errors import DataError
from muster.heterogeneity.tables import Counts

_LAYOUT = "CLIENT/CLASS/files or CLIENT/CLASS/ATTRIBUTE/files, the same depth everywhere"


def count_files(folder: Path) -> Counts:
    """How many files every client has of every class (and attribute value); hidden ones are not counted."""
    cells = _cells(folder)
    depths = {len(cell) for cell in cells}
    if depths not in ({2}, {3}):
        example = min(cells, key=lambda cell: len(cell) in (2, 3), default=None)
        found = "no files" if example is None else f"files in '{Path(*example)}'"
        raise DataError(f"cannot count the samples in {folder}: it has {found}", expected=_LAYOUT)
    names = [sorted(set(level)) for level in zip(*cells, strict=True)]
    positions = [{name: place for place, name in enumerate(known)} for known in names]
    table = np.zeros([len(known) for known in names], dtype=np.int64)
    for cell, files in cells.items():
        table[tuple(at[name] for at, name in zip(positions, cell, strict=True))] = files
    has_attributes = table.ndim == 3
    return Counts(
        folder.resolve().name,
        table if has_attributes else table[:, :, None],
        clients=tuple(names[0]),
        classes=tuple(names[1]),
        attributes=tuple(names[2]) if has_attributes else (),
        has_attributes=has_attributes,
    )


def _cells(folder: Path) -> dict[tuple[str, ...], int]:
    """Folders that hold files, as their parts below `folder`, and how many."""
    cells = {}
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if count := sum(not name.startswith(".") for name in files):
            cells[Path(here).relative_to(folder).parts] = count
    return cells
