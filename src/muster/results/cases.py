"""Runs that differ only in their seed belong together: a case is one line of a table or of a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.config.identity import determining

if TYPE_CHECKING:
    from muster.server.result import Result


@dataclass(frozen=True)
class Case:
    """The runs of one setting, one per seed."""

    name: str
    runs: tuple[Result, ...]

    @property
    def seeds(self) -> list[int]:
        return [seed_of(run) for run in self.runs]


def cases(results: Sequence[Result]) -> list[Case]:
    """Group results by their settings, in the order in which settings first occur, seeds ascending.

    Of two runs with the same settings and seed the longer one counts: they are the same run at different stages.
    Cases that would have the same name have the settings in which they differ appended.
    """
    groups = [part for runs in by_settings(results) for part in _told_apart(runs)]
    return [Case(name, tuple(_one_a_seed(runs))) for name, runs in zip(names(groups), groups, strict=True)]


def by_settings(results: Sequence[Result], free: Sequence[str] = ()) -> list[list[Result]]:
    """Groups of results that differ at most in their seed and in the `free` keys (`section.key`)."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(_settings(result, free) or result.name, sort_keys=True), []).append(result)
    return list(groups.values())


def names(groups: Sequence[list[Result]], free: Sequence[str] = ()) -> list[str]:
    """Names for groups of runs; those with the same name have the settings in which they differ appended."""
    plain = [_common_name(runs) for runs in groups]
    settings = [_settings(runs[0], free) for runs in groups]
    named = []
    for name, own in zip(plain, settings, strict=True):
        same = [other for other, other_name in zip(settings, plain, strict=True) if other_name == name]
        details = [f"{key.rpartition('.')[2]}={own[key]}" for key in differing(same) if key in own]
        named.append(f"{name} ({', '.join(details)})" if details else name)
    return named


def _settings(result: Result, free: Sequence[str] = ()) -> dict[str, Any]:
    return {key: value for key, value in flat(determining(result.config)).items() if key not in ("seed", *free)}


def seed_of(result: Result) -> int:
    return int(result.config.get("seed", 0))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as `section.key`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys, as `section.key`, that not all configs have with the same value."""
    rows = [flat(config) for config in configs]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [key for key in keys if len({json.dumps(row.get(key), sort_keys=True) for row in rows}) > 1]


def _told_apart(runs: list[Result]) -> list[list[Result]]:
    """Runs that repeat a seed under another name are meant as different cases (another engine, say)."""
    if len({seed_of(run) for run in runs}) == len(runs):
        return [runs]
    by_name: dict[str, list[Result]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    return list(by_name.values())


def _one_a_seed(runs: list[Result]) -> list[Result]:
    longest: dict[int, Result] = {}
    for run in sorted(runs, key=lambda run: len(run.records)):
        longest[seed_of(run)] = run
    return [longest[seed] for seed in sorted(longest)]


def _common_name(runs: Sequence[Result]) -> str:
    """The name of all runs; "a" of "a-seed0" and "a-seed1"; otherwise the method that they share."""
    shared = {run.name: re.sub(r"[\s_-]+(seed|s)?[\s_=-]*\d+$", "", run.name) for run in runs}
    if len(shared) == 1:
        return runs[0].name or "run"
    if len(set(shared.values())) == 1:
        return next(iter(shared.values()))
    selection = runs[0].config.get("selection")
    return str(selection["method"]) if isinstance(selection, dict) and "method" in selection else runs[0].name
