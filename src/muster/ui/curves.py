"""Curves of a run, thinned out on the way: a screen has no more than a few thousand columns."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from muster.core.arrays import Floats, Ints

#: Stretches of a curve; of each its lowest and highest point are kept, so that no peak is lost.
STRETCHES = 400
#: What can stand on the x axis, beside rounds; all cumulated.
WORK = {
    "client_trainings": "client_trainings",
    "bytes": "bytes_down + bytes_up",
    "virtual_seconds": "virtual_seconds",
    "seconds": "seconds",
}


def thinned(values: Floats, stretches: int = STRETCHES) -> Ints:
    """Positions that show the same curve: first, last, and the extremes of every stretch; NaN is no point."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) <= 2 * stretches:
        return known
    edges = np.linspace(0, len(known), stretches + 1).astype(np.int64)
    kept = [known[0], known[-1]]
    for start, end in itertools.pairwise(edges.tolist()):
        part = values[known[start:end]]
        kept += [known[start + int(part.argmin())], known[start + int(part.argmax())]]
    return np.unique(np.array(kept, dtype=np.int64))


def curves(
    connection: sqlite3.Connection,
    run: int,
    names: Sequence[str],
    *,
    first: int = 1,
    last: int | None = None,
    stretches: int = STRETCHES,
) -> dict[str, Any]:
    """Metrics of a run at the rounds that a picture needs, with the work done until then."""
    last = last if last is not None else _done(connection, run)
    length = max(0, last - first + 1)
    table = {name: np.full(length, np.nan) for name in names}
    if names and length:
        places = ", ".join("?" * len(names))
        rows = connection.execute(
            "SELECT round, name, value FROM metrics WHERE experiment = ? AND round BETWEEN ? AND ? "
            f"AND value IS NOT NULL AND name IN ({places})",
            (run, first, last, *names),
        )
        for number, name, value in rows:
            table[name][number - first] = value
    chosen = np.unique(np.concatenate([np.empty(0, np.int64), *(thinned(v, stretches) for v in table.values())]))
    work = _work(connection, run, last)
    at = chosen + first - 1
    return {
        "rounds": (chosen + first).tolist(),
        "work": {name: values[at].tolist() for name, values in work.items() if len(values) and values[-1] > 0},
        "metrics": {name: _plain(values[chosen]) for name, values in table.items()},
        "thinned": bool(len(chosen) < max((np.count_nonzero(~np.isnan(v)) for v in table.values()), default=0)),
    }


def metric_names(connection: sqlite3.Connection, run: int) -> list[str]:
    """The metrics of a run in their order: those of its last evaluated round."""
    rows = connection.execute(
        "SELECT name FROM metrics WHERE experiment = ?1 AND round = "
        "(SELECT round FROM metrics WHERE experiment = ?1 AND value IS NOT NULL ORDER BY round DESC LIMIT 1) "
        "ORDER BY position",
        (run,),
    )
    return [row[0] for row in rows]


def _done(connection: sqlite3.Connection, run: int) -> int:
    return int(connection.execute("SELECT done FROM experiments WHERE id = ?", (run,)).fetchone()[0])


def _work(connection: sqlite3.Connection, run: int, last: int) -> dict[str, Floats]:
    rows = connection.execute(
        f"SELECT {', '.join(WORK.values())} FROM ledger WHERE experiment = ? AND round <= ? ORDER BY round",
        (run, last),
    ).fetchall()
    table = np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, len(WORK))
    return dict(zip(WORK, np.cumsum(table, axis=0).T, strict=True))


def _plain(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]
