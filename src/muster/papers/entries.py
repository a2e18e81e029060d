"""Entries: how each table and figure of the papers is run here, at three scales, and what is compared with what.

They live in TOML files, one per paper. An entry's experiments are all combinations of its cells (federations) and
rows (methods, hyper-parameters); everything that departs from the published set-up stands in its scales.

Tables called `provenance` say who decided each value. There may be one in a cell, row, scale or base, beside the
cells or rows for all of them, in an entry, and in the file ([shared.provenance]); the nearest counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from statistics import median
from typing import Any, Literal, TypeAlias

from muster.config.provenance import TABLE, Sources
from muster.core.errors import ConfigError, nearest
from muster.core.registry import build
from muster.papers.published import PAPERS, Numeric, Published, packaged_toml, paper

#: Config sections, as in an experiment file.
Changes: TypeAlias = dict[str, Any]

#: Shows that an entry runs, nothing else.
SMOKE = "smoke"
SCALES = (SMOKE, "small", "paper")


@dataclass(frozen=True)
class Value:
    """One number of a run that stands in the published table, and how to take it from ours."""

    metric: str
    #: Its name in the published table; empty where the table has one number per cell.
    name: str = ""
    #: Of the evaluations: the last, the best, one at a share of the run, the mean after 10, 20, …, 100 % of the
    #: run, the mean of all, or a statistic of the later half.
    pick: Literal["final", "best", "at", "tenths", "overall", "min", "max", "mean", "std"] = "final"
    #: For pick = "at": which share of the rounds.
    at: float = 1.0
    #: For shares of selections: first and last client of the group.
    clients: tuple[int, int] = (0, 0)
    factor: float = 100.0
    digits: int = 1
    #: By how much it may differ from the published number, in its unit; default: see `PaperEntry.tolerance_of`.
    tolerance: float | None = None

    @property
    def lower(self) -> bool:
        """Smaller is better."""
        return self.pick == "std" or any(word in self.metric for word in ("loss", "seconds", "trainings", "_std"))


@dataclass(frozen=True)
class Claim:
    """What the paper says about the order of its rows (or cells, or values), in a form that can be checked."""

    text: str
    #: What is compared with each other.
    over: Literal["rows", "cells", "values"] = "rows"
    #: Which cells and rows it is about.
    cells: str = "*"
    rows: str = "*"
    #: The name of the value; default: the entry's first.
    value: str = ""
    #: Above all others; several: each of them above all that are not among them.
    best: str | tuple[str, ...] | None = None
    worst: str | None = None
    #: Each is above the next.
    order: tuple[str, ...] = ()
    #: Largest minus smallest is at most this many points.
    spread: float | None = None
    #: With one `best`: it is among this many highest.
    among: int = 1
    #: By more than this many points.
    margin: float = 0.0
    #: Not each of the best above each other one, but their mean above the mean of the others.
    average: bool = False
    #: Smaller numbers are better (losses, seconds).
    lower: bool = False

    @property
    def winners(self) -> tuple[str, ...]:
        return (self.best,) if isinstance(self.best, str) else self.best or ()


@dataclass(frozen=True)
class Where:
    """Changes for some of an entry's experiments."""

    changes: Changes
    cells: str = "*"
    rows: str = "*"


@dataclass(frozen=True)
class Scale:
    """How large an entry is run: seeds, rounds, and what is made smaller than in the paper."""

    seeds: int = 3
    #: None: as the workload says.
    rounds: int | None = None
    #: "final" is the mean of this many last evaluations.
    last: int = 1
    #: Which cells and rows are run unless others are asked for.
    cells: str = "*"
    rows: str = "*"
    changes: Changes = field(default_factory=dict)
    where: tuple[Where, ...] = ()
    #: Why nothing is judged at this scale, where what the claims compare is not what is run.
    unfit: str = ""
    sources: Sources = field(default_factory=Sources)


@dataclass(frozen=True)
class Decided:
    """Who decided the values of an entry's parts."""

    base: Sources = field(default_factory=Sources)
    cells: Mapping[str, Sources] = field(default_factory=dict)
    rows: Mapping[str, Sources] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperEntry:
    """One table or figure."""

    id: str
    published: Published
    #: "runs": experiments are run; "federations": only who has what is looked at.
    kind: Literal["runs", "federations"]
    cells: Mapping[str, Changes]
    rows: Mapping[str, Changes]
    values: tuple[Value, ...]
    #: Where our numbers stand in the published table: templates of {cell}, {row}, {value}, {row0}, {row1}.
    row: str
    column: str
    scales: Mapping[str, Scale]
    base: Changes = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    #: What differs from the paper, or had to be guessed, at every scale.
    notes: tuple[str, ...] = ()
    #: By how much values may differ from the published ones before they are marked; None: see `tolerance_of`.
    tolerance: float | None = None
    decided: Decided = field(default_factory=Decided)

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    def scale(self, name: str) -> Scale:
        if name not in self.scales:
            raise ConfigError(f"unknown scale '{name}'", expected=nearest(name, SCALES))
        return self.scales[name]

    def tolerance_of(self, value: Value) -> float:
        """By how much a value may differ from the published one: as it or the entry says, else 2 points where it
        is an accuracy, and a tenth of what the paper usually prints where it is a deviation, a loss or a count."""
        for stated in (value.tolerance, self.tolerance):
            if stated is not None:
                return stated
        if value.factor == 100 and not value.lower:
            return 2.0
        printed = (
            self.published.at(*self.printed_at(cell, row, value)) for cell in self.cells for row in self.rows
        )
        usual = [abs(number.middle) for number in printed if isinstance(number, Numeric)]
        return 0.1 * median(usual) if usual else 0.0

    def printed_at(self, cell: str, row: str, value: Value) -> tuple[str, str]:
        """Row and column of the published table."""
        row0, _, row1 = row.partition(" / ")
        names = {"cell": cell, "row": row, "value": value.name, "row0": row0, "row1": row1}
        return self.row.format(**names), self.column.format(**names)


def chosen(patterns: str | None, known: Mapping[str, Any], what: str) -> list[str]:
    """The names that comma-separated patterns mean, in their own order.

    A name that exists is that name, whatever characters it has ("1*", commas); otherwise * and ? stand for others.
    """
    if patterns is None:
        return list(known)
    wanted: set[str] = set()
    for pattern in _separated(patterns, known):
        found = {pattern} if pattern in known else {name for name in known if fnmatchcase(name, pattern)}
        if not found:
            raise ConfigError(f"unknown {what} '{pattern}'", expected=nearest(pattern, known))
        wanted |= found
    return [name for name in known if name in wanted]


def _separated(patterns: str, known: Mapping[str, Any]) -> Iterator[str]:
    """The patterns between commas; those of a name that exists do not separate."""
    parts = patterns.split(",")
    while parts:
        names = (",".join(parts[:length]).strip() for length in range(len(parts), 0, -1))
        length, name = next(
            (len(parts) - i, name) for i, name in enumerate(names) if name in known or i == len(parts) - 1
        )
        yield name
        del parts[:length]


def fits(name: str, patterns: str) -> bool:
    """Whether one of the comma-separated patterns means this name."""
    return any(part.strip() == name or fnmatchcase(name, part.strip()) for part in patterns.split(","))


def entry(id: str) -> PaperEntry:
    """An entry by its id ("terraform/table2")."""
    known = entries()
    if id not in known:
        raise ConfigError(f"unknown table or figure '{id}'", expected=nearest(id, {*known, *PAPERS}))
    return known[id]


@cache
def entries() -> dict[str, PaperEntry]:
    """Every entry of every paper, by id, in the papers' order."""
    return {found.id: found for name in PAPERS for found in _read(name)}


def _read(name: str) -> list[PaperEntry]:
    content = packaged_toml(name, "entries.toml")
    shared = content.pop("shared", {})
    return [_entry(f"{name}/{part}", values, shared) for part, values in content.items()]


def _entry(id: str, values: dict[str, Any], shared: Mapping[str, Mapping[str, Any]]) -> PaperEntry:
    # A name instead of a table means one that several entries of the file share.
    values = {key: shared[key][value] if _is_name(key, value) else value for key, value in values.items()}
    scales = {
        key: shared["scales"][scale] if isinstance(scale, str) else scale
        for key, scale in values["scales"].items()
    }
    name, _, part = id.partition("/")
    around = Sources().within(shared.get(TABLE, {}), f"the entries of {name}").within(values.get(TABLE, {}), id)
    cells, of_cells = _told_apart(values["cells"], around, f"{id}.cells")
    rows, of_rows = _told_apart(values["rows"], around, f"{id}.rows")
    base, of_base = _without_table(values.get("base", {}), around, f"{id}.base")
    return PaperEntry(
        id=id,
        published=paper(name).parts[values.get("published", part)],
        kind=values.get("kind", "runs"),
        cells=cells,
        rows=rows,
        values=tuple(build(Value, value, f"{id}.values") for value in values["values"]),
        row=values.get("row", "{row}"),
        column=values.get("column", "{cell}"),
        scales={key: _scale(scale, around, f"{id}.scales.{key}") for key, scale in scales.items()},
        base=base,
        claims=tuple(build(Claim, claim, f"{id}.claims") for claim in values.get("claims", ())),
        notes=tuple(values.get("notes", ())),
        tolerance=values.get("tolerance"),
        decided=Decided(of_base, of_cells, of_rows),
    )


def _told_apart(
    group: Mapping[str, Changes], around: Sources, where: str
) -> tuple[dict[str, Changes], dict[str, Sources]]:
    """Cells or rows, and who decided their values."""
    members, around = _without_table(group, around, where)
    parts = {name: _without_table(changes, around, f"{where}.{name}") for name, changes in members.items()}
    return {name: changes for name, (changes, _) in parts.items()}, {name: own for name, (_, own) in parts.items()}


def _without_table(values: Mapping[str, Any], around: Sources, where: str) -> tuple[Changes, Sources]:
    rest = {key: value for key, value in values.items() if key != TABLE}
    return rest, around.within(values.get(TABLE, {}), where)


def _is_name(key: str, value: Any) -> bool:
    return key in ("cells", "rows", "values", "scales") and isinstance(value, str)


def _scale(values: Changes, around: Sources, section: str) -> Scale:
    values, sources = _without_table(values, around, section)
    where = tuple(build(Where, case, f"{section}.where") for case in values.get("where", ()))
    return build(Scale, {**values, "where": where, "sources": sources}, section)
