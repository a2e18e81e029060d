"""The league's file: problems, tables of methods, scales and grids for tuning, checked key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from muster.aggregation.base import aggregators
from muster.core.errors import ConfigError, nearest
from muster.core.registry import build
from muster.selection.base import selectors

Sections = Mapping[str, Any]
Grid = Mapping[str, tuple[Any, ...]]

#: How clients are selected where a league says nothing else.
SELECTION = "random"
#: What a table compares → where its methods are registered.
_REGISTRIES: dict[str, Any] = {"selection": selectors, "aggregation": aggregators}


@dataclass(frozen=True)
class LeagueScale:
    """How much of the league is run."""

    #: How many seeds, from 0.
    seeds: int
    #: Problem → how many it has instead, for example where runs take long.
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    #: No run has more rounds; None: as many as its problem says.
    rounds: int | None = None
    #: Names of problems; none: all.
    problems: tuple[str, ...] = ()
    #: Whether main options are chosen by the grid first, on separate seeds.
    tuning: bool = False

    def seeds_for(self, problem: str) -> int:
        return self.seeds_of.get(problem, self.seeds)


@dataclass(frozen=True)
class ProblemEntry:
    """A problem: the sections of an experiment, without the method."""

    name: str
    #: Clients that a round trains.
    cohort: int
    sections: Sections
    #: What only some methods need: "devices", "attributes".
    has: tuple[str, ...] = ()


@dataclass(frozen=True)
class MethodTable:
    """Methods side by side; everything else is the same."""

    name: str
    #: The section that names the method: "selection" or "aggregation".
    compares: str
    baseline: str
    #: Sections that all rows share.
    base: Sections = field(default_factory=dict)
    #: Method → sections with what it needs besides its name.
    changes: Mapping[str, Sections] = field(default_factory=dict)
    #: Method → what a problem must have for it.
    requires: Mapping[str, str] = field(default_factory=dict)
    #: Method → clients that a round must train for it.
    least_cohort: Mapping[str, int] = field(default_factory=dict)
    #: Method → why it is not in the table.
    leave_out: Mapping[str, str] = field(default_factory=dict)
    #: Method → option → values to choose from; an option of another section is written "algorithm.alpha".
    grid: Mapping[str, Grid] = field(default_factory=dict)
    #: Problem → method → the grid that it has there instead, where the usual values make it another method.
    grid_in: Mapping[str, Mapping[str, Grid]] = field(default_factory=dict)

    def grid_for(self, method: str, problem: str) -> Grid:
        """What a method's options are chosen from; empty: it has its defaults."""
        return self.grid_in.get(problem, {}).get(method, self.grid.get(method, {}))

    @property
    def selection(self) -> str:
        """Who is selected where something else is compared."""
        return str(self.base.get("selection", {}).get("method", SELECTION))

    @property
    def methods(self) -> list[str]:
        """Every registered method that is not left out, the baseline first."""
        names = [name for name in _REGISTRIES[self.compares] if name not in self.leave_out]
        return [self.baseline, *(name for name in names if name != self.baseline)]


@dataclass(frozen=True)
class League:
    """The whole study."""

    name: str
    scales: Mapping[str, LeagueScale]
    problems: tuple[ProblemEntry, ...]
    tables: tuple[MethodTable, ...]
    #: Scores are means of this many last evaluations.
    last: int = 1
    #: Seeds on which options are chosen; no other run has them.
    tuning_seeds: tuple[int, ...] = ()

    def scale(self, name: str) -> LeagueScale:
        if name not in self.scales:
            raise ConfigError(f"the league has no scale '{name}'", expected=nearest(name, self.scales))
        return self.scales[name]

    def chosen_problems(self, scale: LeagueScale) -> list[ProblemEntry]:
        return [problem for problem in self.problems if not scale.problems or problem.name in scale.problems]


def load_league(path: Path | None = None) -> League:
    """Read a league; without a path the one that comes with Muster."""
    if path is None:
        text = (resources.files("muster.league") / "league.toml").read_text(encoding="utf-8")
        return from_values(tomllib.loads(text))
    try:
        return from_values(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", fix="check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def from_values(values: Mapping[str, Any]) -> League:
    """A league from nested dicts, with errors that name the key."""
    known = ("name", "last", "tuning_seeds", "scales", "problems", "tables")
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key '{key}' in the league", expected=nearest(key, known))
    for key in ("scales", "problems", "tables"):
        if not values.get(key):
            raise ConfigError(f"the league has no {key}", fix=f"add a section [{key}.…] or [[{key}]]")
    league = League(
        name=str(values.get("name", "league")),
        scales={name: build(LeagueScale, scale, f"scales.{name}") for name, scale in values["scales"].items()},
        problems=tuple(_problem(row, number) for number, row in enumerate(values["problems"])),
        tables=tuple(build(MethodTable, row, f"tables[{number}]") for number, row in enumerate(values["tables"])),
        last=int(values.get("last", 1)),
        tuning_seeds=tuple(values.get("tuning_seeds", ())),
    )
    _check(league)
    return league


def _problem(row: Mapping[str, Any], number: int) -> ProblemEntry:
    own = ("name", "cohort", "has")
    sections = {key: value for key, value in row.items() if key not in own}
    given = {key: row[key] for key in own if key in row} | {"sections": sections}
    problem: ProblemEntry = build(ProblemEntry, given, f"problems[{number}]")
    return problem


def _check(league: League) -> None:
    names = [problem.name for problem in league.problems]
    if len(set(names)) < len(names):
        raise ConfigError("two problems of the league have the same name")
    for problem in league.problems:
        data = problem.sections.get("data")
        if not isinstance(data, Mapping) or not isinstance(data.get("source"), str):
            raise ConfigError(
                f"problem '{problem.name}' of the league does not say which data it has",
                expected='data = { source = "…" }, for example "digits"',
            )
    for scale_name, scale in league.scales.items():
        for name in (*scale.problems, *scale.seeds_of):
            if name not in names:
                raise ConfigError(
                    f"scale '{scale_name}' names the problem '{name}'", expected=nearest(name, names)
                )
        counts = (scale.seeds, *scale.seeds_of.values())
        if min(counts) < 1:
            raise ConfigError(f"scale '{scale_name}' has {min(counts)} seeds", expected="at least 1")
        if set(range(max(counts))) & set(league.tuning_seeds):
            raise ConfigError(
                f"tuning_seeds and the {max(counts)} seeds of scale '{scale_name}' overlap",
                fix="tune on seeds other than those that are reported: 1000, 1001, …",
            )
        if scale.tuning and not league.tuning_seeds:
            raise ConfigError(f"scale '{scale_name}' tunes, but there are no tuning_seeds")
    for table in league.tables:
        _check_table(table, names)


def _check_table(table: MethodTable, problems: Sequence[str]) -> None:
    if table.compares not in _REGISTRIES:
        raise ConfigError(
            f"table '{table.name}' compares '{table.compares}'", expected=nearest(table.compares, _REGISTRIES)
        )
    registry = _REGISTRIES[table.compares]
    for method in (
        table.baseline,
        *table.changes,
        *table.requires,
        *table.least_cohort,
        *table.leave_out,
        *table.grid,
        *(method for grids in table.grid_in.values() for method in grids),
    ):
        registry.get(method)
    for name in table.grid_in:
        if name not in problems:
            raise ConfigError(
                f"table '{table.name}' has a grid for the problem '{name}'", expected=nearest(name, problems)
            )
