"""Where the values of presets come from: stated in the paper, taken from public code, or our choice.

Files of presets have `provenance` tables beside the values: dotted names of settings (* and ? stand for others)
with a string that starts with `paper`, `code` or `ours`, optionally followed by `: where or why`. What a table
does not name is looked up in the tables around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

from muster.core.errors import ConfigError

Kind = Literal["paper", "code", "ours"]

#: The key of the tables in files of presets.
TABLE = "provenance"


@dataclass(frozen=True)
class Provenance:
    """Who decided a value, and where or why."""

    kind: Kind
    note: str = ""

    @classmethod
    def read(cls, text: object, where: str) -> Provenance:
        kind, _, note = str(text).partition(":")
        if kind.strip() not in get_args(Kind):
            raise ConfigError(
                f"bad provenance of {where}: {text!r}",
                expected="paper, code or ours, then perhaps `: where or why`",
            )
        return cls(cast("Kind", kind.strip()), note.strip())


@dataclass(frozen=True)
class Sources:
    """Tables of provenance, the nearest to a value first."""

    tables: tuple[Mapping[str, Provenance], ...] = ()

    def within(self, table: Mapping[str, Any], where: str) -> Sources:
        """The same with a nearer table, as it stands in a file."""
        read = {name: Provenance.read(text, f"{name} in {where}") for name, text in leaves(table)}
        return Sources((read, *self.tables)) if read else self

    def of(self, name: str) -> Provenance | None:
        """Who decided a setting: the nearest table that says so, in it the name itself or the longest pattern."""
        for table in self.tables:
            fitting = [pattern for pattern in table if fnmatchcase(name, pattern)]
            if fitting:
                return table[name if name in table else max(fitting, key=len)]
        return None

    def named(self, name: str) -> Provenance | None:
        """Who decided a setting, if a table has this very name: patterns do not cover what is not set."""
        return next((table[name] for table in self.tables if name in table), None)


def leaves(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting in nested sections by its dotted name."""
    for key, value in sections.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
