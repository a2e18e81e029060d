"""What the papers print: numbers, named by table, row and column, read from one file per paper."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, ClassVar, TypeAlias

from muster.config.provenance import Provenance
from muster.core.errors import ConfigError, nearest

_RANGE = re.compile(r"(-?[\d.]+) *(?:to|–) *(-?[\d.]+)")


@dataclass(frozen=True)
class Number:
    """A published number, with its standard deviation where the paper gives one."""

    value: float
    std: float = 0.0

    @property
    def middle(self) -> float:
        return self.value

    def apart(self, ours: float) -> float:
        """How far above (or, negative, below) it a number of ours is."""
        return ours - self.value


@dataclass(frozen=True)
class PublishedRange:
    """Where the text gives only a range ("37 to 38 %")."""

    low: float
    high: float
    std: ClassVar[float] = 0.0

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def apart(self, ours: float) -> float:
        """How far above (or, negative, below) the range a number of ours is; zero within."""
        return max(ours - self.high, 0.0) + min(ours - self.low, 0.0)


#: What stands in a cell of a published table: a number, a range, or words ("not scalable", a formula).
Printed: TypeAlias = Number | PublishedRange | str
#: What can be compared with a number of ours.
Numeric = Number | PublishedRange


@dataclass(frozen=True)
class Published:
    """One table or figure as printed. Figures without numbers have only what the text says about them."""

    caption: str
    #: What the paper's text says about it.
    says: str = ""
    #: What we have to add: where the paper's own numbers or records are at odds with it.
    remark: str = ""
    #: Where the numbers come from; None: they are printed in this table or figure.
    source: Provenance | None = None
    unit: str = ""
    columns: tuple[str, ...] = ()
    rows: Mapping[str, tuple[Printed, ...]] = field(default_factory=dict)

    @property
    def whose(self) -> str:
        """Who gives the numbers."""
        return "public code" if self.source is not None and self.source.kind == "code" else "paper"

    def at(self, row: str, column: str) -> Printed | None:
        """What is printed there; None where the table has no such row or column."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]


@dataclass(frozen=True)
class Paper:
    """A paper and its tables and figures, by id ("table2")."""

    id: str
    name: str
    title: str
    authors: str
    parts: Mapping[str, Published]


#: In the order in which they are listed.
PAPERS = ("terraform", "astrafl", "probing", "feddiverse", "simprox")


@cache
def paper(name: str) -> Paper:
    """The published numbers of a paper."""
    if name not in PAPERS:
        raise ConfigError(f"unknown paper '{name}'", expected=nearest(name, PAPERS))
    content = packaged_toml(name, "published.toml")
    return Paper(
        name, **content.pop("paper"), parts={part: _published(values) for part, values in content.items()}
    )


def packaged_toml(*path: str) -> dict[str, Any]:
    """A data file of this package."""
    file = resources.files("muster.papers").joinpath(*path)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _published(values: dict[str, Any]) -> Published:
    columns = tuple(values.get("columns", ()))
    rows = {
        name: tuple(_printed(cell, f"in row {name} of {values['caption']}") for cell in cells)
        for name, cells in values.get("rows", {}).items()
    }
    source = values.get("source")
    return Published(
        values["caption"],
        says=values.get("says", ""),
        remark=values.get("remark", ""),
        source=None if source is None else Provenance.read(source, f"the numbers of {values['caption']}"),
        unit=values.get("unit", ""),
        columns=columns,
        rows=rows,
    )


def _printed(cell: float | str | Sequence[float], where: str) -> Printed:
    """A number, [mean, standard deviation], a range ("37 to 38"), or words."""
    if isinstance(cell, str):
        found = _RANGE.fullmatch(cell.strip())
        return PublishedRange(*sorted(map(float, found.groups()))) if found else cell
    if not isinstance(cell, Sequence):
        return Number(float(cell))
    value, std = map(float, cell)
    if not 0 <= std < abs(value):
        raise ConfigError(
            f"bad number {where}: {cell}", expected='[mean, standard deviation]; a range is written as "37 to 38"'
        )
    return Number(value, std)
