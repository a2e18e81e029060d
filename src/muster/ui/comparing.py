"""Runs side by side: the view's numbers come from `muster.report.compare`, through `compared` alone."""

from __future__ import annotations

import math
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from muster.core.arrays import Floats
from muster.core.errors import ConfigError, MusterError
from muster.core.parameters import ParameterSpec
from muster.report.compare import Options, compare
from muster.report.compare.measures import UNITS, curve, metric_column, spends
from muster.report.headline import headline_of
from muster.report.looks import looks
from muster.report.render import marked_texts
from muster.report.tables import Table
from muster.results.cases import Case
from muster.results.store.codec import RecordReader
from muster.selection.history import History
from muster.server.ledger import Ledger
from muster.server.origin import Origin
from muster.server.record import TrainingRecord
from muster.server.result import Result
from muster.ui.catalogue import Entry

#: More runs than this are not compared at once: choose some.
MAX_RUNS = 600
_POINTS = 240
_TABLES = ("scores", "budgets", "targets", "significance")
_KEPT = 2000


class Results:
    """Results of runs without models, selections and reports, kept until a run has new rounds."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[tuple[str, int], Result]] = OrderedDict()

    def read(self, connection: sqlite3.Connection, entry: Entry) -> Result:
        run, state = entry.facts["id"], (entry.facts["fingerprint"], entry.facts["done"])
        known = self._known.get(run)
        if known is None or known[0] != state:
            self._known[run] = (state, _read(connection, entry))
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        # Name and status may change without a round.
        return replace(
            self._known[run][1],
            name=entry.facts["name"],
            complete=entry.status == "complete",
            provenance=Origin(entry.facts["fingerprint"], entry.status, entry.facts["error"]),
        )


def _read(connection: sqlite3.Connection, entry: Entry) -> Result:
    rows: dict[str, list[Any]] = {name: [] for name in ("selections", "flights", "reports", "events")}
    rows["rounds"] = [
        {"round": number, "virtual_began": 0.0, "virtual_ended": 0.0, **dict.fromkeys(_LEFT_OUT)}
        for number in range(1, entry.facts["done"] + 1)
    ]
    for table, order in (("metrics", "round, position"), ("ledger", "round")):
        rows[table] = connection.execute(
            f"SELECT * FROM {table} WHERE experiment = ? AND round <= ? ORDER BY {order}",
            (entry.facts["id"], entry.facts["done"]),
        ).fetchall()
    reader = RecordReader(rows)
    records = reader.records()
    # Whether a method trains several times in a round decides which accuracies can be told apart.
    for number, trainings in connection.execute(
        "SELECT round, count(*) FROM selections WHERE experiment = ? AND round <= ? GROUP BY round",
        (entry.facts["id"], entry.facts["done"]),
    ):
        records[number - 1].trainings = [TrainingRecord([], []) for _ in range(trainings)]
    return Result(
        parameters=np.empty(0, dtype=np.float32),
        records=records,
        ledger=Ledger(reader.costs(), reader.disclosed()),
        history=History(0),
        spec=ParameterSpec(()),
        name=entry.facts["name"],
        config=entry.config,
    )


_LEFT_OUT = ("asks", "groups", "notes", "client_accuracy", "observed")


def comparison_view(results: Sequence[Result], options: Options, per: str) -> dict[str, Any]:
    """Problems with their methods: the headline, tables, curves with bands over seeds, remarks."""
    if not results:
        raise ConfigError("no run was chosen that has a round", fix="choose others")
    general: list[str] = []
    try:
        general, parts = compared(results, options, per)
    except MusterError as error:  # its place is among the controls, where another choice can be made
        told = {"trouble": error.problem, "expected": error.expected, "fix": error.fix}
        parts = [{"problem": data_of(results), **told}]
    return {
        "problems": parts,
        "remarks": general,
        "options": {"metric": options.metric, "per": per, "at": options.at},
    }


def compared(results: Sequence[Result], options: Options, per: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Remarks on all, and a part for each problem, told apart as `muster compare` does.

    Statistics come from here only.
    """
    column = metric_column(options.metric)
    comparison = compare(results, replace(options, tables=_TABLES, sort=True))
    return list(comparison.general), [
        {
            "problem": judged.name or data_of(judged.problem.runs),
            "headline": headline_of(judged, options),
            "baseline": judged.baseline.name,
            "tables": {name: _table(table) for name, table in judged.tables.items()},
            "remarks": list(judged.remarks),
            "lines": _lines(judged.cases, options.metric, per),
            "units": [unit for unit in UNITS if any(spends(run, unit) for run in judged.problem.runs)],
            "column": {"title": column.title, "percent": column.unit == "%"},
            "fingerprints": {
                case.name: [run.provenance.fingerprint for run in case.runs] for case in judged.cases
            },
        }
        for judged in comparison.judged
    ]


def data_of(results: Sequence[Result]) -> str:
    """What to call runs that nothing tells apart as problems: by the data that they work on."""
    sections = [run.config.get("data") for run in results]
    return ", ".join(
        dict.fromkeys(
            str(data.get("source", data.get("data", "own data"))) if isinstance(data, dict) else "own data"
            for data in sections
        )
    )


def _table(table: Table) -> dict[str, Any]:
    """A table as texts: numbers look as in every other table of the package."""
    return {
        "title": table.title,
        "columns": [{"heading": column.heading, "number": not column.textual} for column in table.columns],
        "rows": [[{"text": text, "mark": mark} for text, mark in row] for row in marked_texts(table)],
        "notes": list(table.notes),
    }


def _lines(cases: Sequence[Case], metric: str, per: str) -> list[dict[str, Any]]:
    """Curves of cases, in the colours that their methods have in every picture, on light and on dark ground."""
    names = [case.name for case in cases]
    found: list[dict[str, Any]] = []
    for case, light, dark in zip(cases, looks(names, dark=False), looks(names, dark=True), strict=True):
        drawn = [points for run in case.runs if len((points := curve(run, metric, per))[0])]
        if drawn:
            work, mean, low, high = band(drawn)
            found.append(
                {
                    "name": case.name,
                    "work": work.tolist(),
                    "mean": _plain(mean),
                    "low": _plain(low),
                    "high": _plain(high),
                    "seeds": len(drawn),
                    "colours": [light.colour, dark.colour],
                }
            )
    return found


def band(runs: Sequence[tuple[Floats, Floats]], points: int = _POINTS) -> tuple[Floats, Floats, Floats, Floats]:
    """Work, mean, lowest and highest over runs, each keeping its value until its next evaluation.

    Nothing is made up where runs have not begun yet or have ended: the band begins with the last and ends with the
    first of them.
    """
    start = max(float(work[0]) for work, _ in runs)
    end = min(float(work[-1]) for work, _ in runs)
    grid = np.unique(np.concatenate([work for work, _ in runs]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > points:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, points).astype(np.int64))]
    heights = np.array([values[np.searchsorted(work, grid, side="right") - 1] for work, values in runs])
    return grid, heights.mean(axis=0), heights.min(axis=0), heights.max(axis=0)


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
