"""A table as data: columns that know how to show a number, cells with a value, its spread and its rank.

Computations fill tables, `muster.report.render` writes them: no number is made of a text, and no text of a number
anywhere else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from muster.report.intervals import mean_interval

#: What a cell without a number shows.
MISSING = "–"
#: Between which numbers means may lie.
UNBOUNDED, AMOUNTS, SHARES = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)


class Better(Enum):
    """Which end of a column is the good one."""

    HIGHER = 1
    LOWER = -1


class Mark(Enum):
    """A cell's rank in its column."""

    BEST = "best"
    SECOND = "second"


@dataclass(frozen=True)
class Cell:
    """A number with its spread over seeds, or a text."""

    #: NaN: not measured.
    value: float | str = math.nan
    #: Standard deviation over the seeds; None where there is only one.
    spread: float | None = None
    #: What the value is the mean of, one per seed; NaN where a seed has none.
    values: tuple[float, ...] = ()
    mark: Mark | None = None
    #: The true value is larger: the runs ended before it was known.
    above: bool = False
    #: Said after the number, in brackets.
    note: str = ""
    #: Between which numbers the mean must lie, whatever the seeds: an interval ends there.
    bounds: tuple[float, float] = UNBOUNDED

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean; None where there is no spread, or where seeds are missing."""
        if isinstance(self.value, str) or not self.spread or not self.whole:
            return None
        low, high = mean_interval(np.array(self.values))
        return max(low, self.bounds[0]), min(high, self.bounds[1])

    @property
    def whole(self) -> bool:
        """A number that all of its seeds stand behind: only those can be ranked."""
        return (
            not isinstance(self.value, str)
            and not self.above
            and not math.isnan(self.value)
            and not any(map(math.isnan, self.values))
        )


@dataclass(frozen=True)
class Column:
    """What stands over a column, and how its numbers are shown."""

    title: str
    unit: str = ""
    #: Numbers are multiplied by it before they are shown: 100 for percent.
    scale: float = 1.0
    #: Format specification of a number; empty: a column of texts.
    form: str = ".1f"
    better: Better | None = None
    #: Between which numbers its means must lie; None: 0 and 1 for percentages, anywhere for the rest.
    bounds: tuple[float, float] | None = None

    @property
    def limits(self) -> tuple[float, float]:
        return self.bounds or (SHARES if self.unit.startswith("%") else UNBOUNDED)

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def textual(self) -> bool:
        return not self.form

    def shown(self, value: float) -> str:
        return format(value * self.scale, self.form)


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first column names the rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    #: What a reader has to know to read it.
    notes: tuple[str, ...] = ()
    #: Whether means are shown with their confidence interval, instead of the standard deviation.
    intervals: bool = False

    def column(self, title: str) -> list[Cell]:
        """The cells of the column with this title."""
        number = [column.title for column in self.columns].index(title)
        return [row[number] for row in self.rows]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from muster.report.render import to_html  # which is made of tables itself

        return f"<div><p><strong>{html.escape(self.title)}</strong></p>{to_html(self)}</div>"


def text_column(title: str) -> Column:
    return Column(title, form="")


def bytes_column(title: str, largest: float, *, better: Better | None = None, per: str = "") -> Column:
    """Bytes in one unit for the whole column, chosen so that the largest value is easy to read."""
    power = min(4, int(math.log10(largest) // 3)) if largest >= 1000 else 0
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    return Column(title, unit + per, 1000.0**-power, ",.0f" if power == 0 else ",.1f", better, AMOUNTS)


def over_seeds(values: Iterable[float]) -> Cell:
    """Mean and sample standard deviation. Seeds without a value are counted in a note, not filled in."""
    values = tuple(map(float, values))
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Cell(values=values)
    # In ascending order, so that the last bit does not depend on the order of the seeds.
    known.sort()
    spread = float(np.std(known, ddof=1)) if len(known) > 1 else None
    # Values that are equal on paper differ in their last bits, or their mean does.
    if spread is not None and math.isclose(known[0], known[-1], rel_tol=1e-12):
        spread = 0.0
    note = f"{len(known)} of {len(values)} seeds" if len(known) < len(values) else ""
    return Cell(float(np.mean(known)), spread, values, note=note)


def from_columns(title: str, columns: Sequence[tuple[Column, Sequence[Cell]]], notes: Iterable[str] = ()) -> Table:
    """A table from its columns, with the best and the second best of each marked."""
    marked = [_marked(column, cells) for column, cells in columns]
    return Table(title, tuple(column for column, _ in columns), tuple(zip(*marked, strict=True)), tuple(notes))


def _marked(column: Column, cells: Sequence[Cell]) -> list[Cell]:
    marks = ranks(column, cells)
    return [replace(cell, mark=mark, bounds=column.limits) for cell, mark in zip(cells, marks, strict=True)]


def ranks(column: Column, cells: Sequence[Cell]) -> list[Mark | None]:
    """Best and second best of a column; equal is what looks equal.

    Two that share the first place leave no second. Cells that miss seeds are not ranked, and where the true value
    of a censored cell may lie before a place, that place is not awarded.
    """
    unmarked: list[Mark | None] = [None] * len(cells)
    if column.better is None or sum(cell.whole for cell in cells) < 2:
        return unmarked
    sign = column.better.value
    scores = [sign * _as_shown(column, cell.value) if cell.whole else -math.inf for cell in cells]
    limit = max((sign * _as_shown(column, cell.value) for cell in cells if cell.above), default=-math.inf)
    if column.better is Better.HIGHER and limit > -math.inf:
        return unmarked  # a censored value may be as high as it likes
    marks = unmarked
    for mark in (Mark.BEST, Mark.SECOND):
        top = max((score for score, given in zip(scores, marks, strict=True) if given is None), default=-math.inf)
        if top < limit or top == -math.inf or (mark is Mark.SECOND and marks.count(Mark.BEST) > 1):
            break
        marks = [mark if score == top else given for score, given in zip(scores, marks, strict=True)]
    return unmarked if set(marks) == {Mark.BEST} else marks


def _as_shown(column: Column, value: float | str) -> float:
    assert not isinstance(value, str)
    return float(column.shown(value).replace(",", ""))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows)])


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
