"""What the papers print: numbers with the names of their tables, rows and columns, read from one file a paper."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from muster.errors import ConfigError, nearest


@dataclass(frozen=True)
class Number:
    """A published number, with its standard deviation where the paper gives one."""

    value: float
    std: float = 0.0


#: What stands in a cell of a published table: a number, or words ("not scalable", a formula).
Printed: TypeAlias = Number | str


@dataclass(frozen=True)
class Published:
    """One table or figure as printed. Figures without numbers have only what the text says about them."""

    caption: str
    says: str = ""
    unit: str = ""
    columns: tuple[str, ...] = ()
    rows: Mapping[str, tuple[Printed, ...]] = field(default_factory=dict)

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
    content = read_toml(f"{name}.toml")
    return Paper(
        name, **content.pop("paper"), parts={part: _published(values) for part, values in content.items()}
    )


def read_toml(*path: str) -> dict[str, Any]:
    """A data file of this package."""
    file = resources.files("muster.experiment.papers").joinpath(*path)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _published(values: dict[str, Any]) -> Published:
    columns = tuple(values.get("columns", ()))
    rows = {name: tuple(_printed(cell) for cell in cells) for name, cells in values.get("rows", {}).items()}
    return Published(values["caption"], values.get("says", ""), values.get("unit", ""), columns=columns, rows=rows)


def _printed(cell: float | str | Sequence[float]) -> Printed:
    if isinstance(cell, str):
        return cell
    return Number(*map(float, cell)) if isinstance(cell, Sequence) else Number(float(cell))
