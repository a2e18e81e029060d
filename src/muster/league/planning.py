"""Which runs a league consists of: methods × problems × seeds, and before them the grids on separate seeds."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from muster.config.experiment import Experiment, from_dict, merged
from muster.core.errors import ConfigError
from muster.core.registry import build, parameters_of
from muster.league.file import SELECTION, League, LeagueScale, MethodTable, ProblemEntry
from muster.papers.stand_ins import is_here
from muster.selection.base import Selector

#: Option, or section and option with a point between → value: one point of a grid; empty: the defaults.
Point = Mapping[str, Any]

#: A run takes seconds, and some methods have more to keep than to compute.
_CHECKPOINT_EVERY = 10

_Entry = TypeVar("_Entry", MethodTable, ProblemEntry)


@dataclass(frozen=True)
class PlannedRun:
    """One run of the league, with its place in it."""

    table: str
    problem: str
    method: str
    experiment: Experiment
    point: Point = field(default_factory=dict)


@dataclass(frozen=True)
class LeaguePlan:
    """What is to be run at a scale on this machine."""

    league: League
    scale_name: str
    #: Problem → how many seeds, from 0.
    seeds: Mapping[str, int]
    problems: tuple[ProblemEntry, ...]
    #: Classes of users' selectors, by the name that they have in the tables.
    guests: Mapping[str, type[Selector]]
    #: Problem → why it cannot be run here.
    absent: Mapping[str, str]

    @property
    def scale(self) -> LeagueScale:
        return self.league.scale(self.scale_name)

    def rows(self, table: MethodTable, problem: ProblemEntry) -> list[str]:
        """The methods of a table that a problem is for."""
        guests = list(self.guests) if table.compares == "selection" else []
        have = {*problem.has, *problem.sections}
        return [
            name
            for name in [*table.methods, *guests]
            if table.requires.get(name, "data") in have and table.least_cohort.get(name, 0) <= problem.cohort
        ]

    def tuning_runs(self) -> list[PlannedRun]:
        """Every point of every grid, on the seeds for tuning; none where the scale does not tune."""
        if not self.scale.tuning:
            return []
        return [
            self._run(table, problem, method, seed, point)
            for seed in self.league.tuning_seeds
            for table, problem, method in self._places()
            if (grid := table.grid_for(method, problem.name))
            for point in points(grid)
        ]

    def runs(self, chosen: Mapping[tuple[str, str, str], Point]) -> list[PlannedRun]:
        """The runs that count, with the options that were chosen by (table, problem, method).

        Ordered by seed: a league that is stopped early has some seeds of everything.
        """
        return [
            self._run(table, problem, method, seed, chosen.get((table.name, problem.name, method), {}))
            for seed in range(max(self.seeds.values()))
            for table, problem, method in self._places()
            if seed < self.seeds[problem.name]
        ]

    def _places(self) -> Iterator[tuple[MethodTable, ProblemEntry, str]]:
        for table in self.league.tables:
            for problem in self.problems:
                yield from ((table, problem, method) for method in self.rows(table, problem))

    def _run(self, table: MethodTable, problem: ProblemEntry, method: str, seed: int, point: Point) -> PlannedRun:
        rounds = int(problem.sections.get("rounds", Experiment.rounds))
        values = merged({"checkpoint": {"every": _CHECKPOINT_EVERY}}, merged(problem.sections, table.base)) | {
            "name": f"{method}, {problem.name}",
            "seed": seed,
            "rounds": min(rounds, self.scale.rounds or rounds),
        }
        cohort = {"clients_per_round": problem.cohort}
        values["selection"] = {"method": SELECTION} | cohort | values.get("selection", {})
        changes = dict(table.changes.get(method, {}))
        if method in self.guests:
            values["selection"] = _guest(self.guests[method], cohort)
            return PlannedRun(table.name, problem.name, method, from_dict(values), point)
        own = {"method": method, **(cohort if table.compares == "selection" else {})}
        changes[table.compares] = {**own, **changes.get(table.compares, {})}
        for key, value in point.items():
            section, _, option = key.rpartition(".")
            place = section or table.compares
            changes[place] = {**changes.get(place, {}), option: value}
        return PlannedRun(table.name, problem.name, method, from_dict(merged(values, changes)), point)


def plan(
    league: League,
    scale: str = "small",
    *,
    guests: Sequence[str] = (),
    problems: Sequence[str] = (),
    tables: Sequence[str] = (),
    seeds: int | None = None,
) -> LeaguePlan:
    """The league at a scale.

    `guests` are users' selectors as `module:Class`; `problems`, `tables`: only these; `seeds`: how many each
    problem has.
    """
    size = league.scale(scale)
    wanted = _chosen("problem", league.problems, problems) or league.chosen_problems(size)
    league = replace(league, tables=tuple(_chosen("table", league.tables, tables) or league.tables))
    absent = {
        problem.name: f"the data '{problem.sections['data']['source']}' are not on this machine"
        for problem in wanted
        if not is_here(problem.sections["data"]["source"])
    }
    here = tuple(problem for problem in wanted if problem.name not in absent)
    if not here:
        raise ConfigError(f"none of the problems can be run here: {'; '.join(absent.values())}", fix="fetch data")
    if seeds is not None and set(range(seeds)) & set(league.tuning_seeds):
        raise ConfigError(
            f"{seeds} seeds reach into those for tuning", expected=f"below {min(league.tuning_seeds)}"
        )
    counts = {problem.name: size.seeds_for(problem.name) if seeds is None else seeds for problem in here}
    return LeaguePlan(league, scale, counts, here, guests_of(guests), absent)


def seeds_in_words(counts: Collection[int]) -> str:
    """How many seeds problems have: "1 seed", "5 seeds", "5 to 10 seeds"."""
    fewest, most = min(counts), max(counts)
    several = f"{fewest} to {most}" if fewest < most else str(most)
    return f"{several} seed{'s' * (most != 1)}"


def _chosen(what: str, entries: Sequence[_Entry], names: Sequence[str]) -> list[_Entry]:
    """The entries with these names, in the order of the names."""
    known = {entry.name: entry for entry in entries}
    for name in names:
        if name not in known:
            raise ConfigError(f"the league has no {what} '{name}'", expected=", ".join(known))
    return [known[name] for name in dict.fromkeys(names)]


def points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


# --- users' selectors --------------------------------------------------------------------------------------------


def guests_of(words: Sequence[str]) -> dict[str, type[Selector]]:
    """Selectors by the names of their classes, with the module where two have the same."""
    names = {word: word.rpartition(":")[2] for word in words}
    shared = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {word if name in shared else name: guest_class(word) for word, name in names.items()}


def guest_class(word: str) -> type[Selector]:
    """The selector that `module:Class` names; modules of the working directory are found too."""
    module, colon, name = word.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"bad selector '{word}'", expected="module:Class, for example my_methods:MySelector")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(
            f"cannot import '{module}': {error}",
            fix="run it from the folder with that file, or install the package",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Selector)):
        raise ConfigError(f"'{name}' in '{module}' is not a selector", expected="a class derived from Selector")
    return found


def _guest(kind: type[Selector], cohort: Mapping[str, int]) -> Selector:
    """The selector with the problem's cohort, where it has such an option."""
    options = {key: value for key, value in cohort.items() if key in parameters_of(kind)}
    return build(kind, options, kind.__name__)
