"""Runs that differ only in their seed belong together: a case is one line of a table or of a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.result import Result

#: What may differ between runs of one case.
_FREE = ("name", "seed", "engine", "checkpoint")


@dataclass(frozen=True)
class Case:
    """The runs of one setting, one a seed."""

    name: str
    runs: tuple[Result, ...]

    @property
    def seeds(self) -> list[int]:
        return [seed_of(run) for run in self.runs]


def cases(results: Sequence[Result]) -> list[Case]:
    """Group results by their settings, in the order in which settings first occur, seeds ascending.

    Of two runs with the same settings and seed the longer one counts: they are the same run, further or less far.
    Cases that would have the same name get what they differ in appended.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        settings = {key: value for key, value in result.config.items() if key not in _FREE}
        groups.setdefault(json.dumps(settings or result.name, sort_keys=True), []).append(result)
    found = [part for runs in groups.values() for part in _told_apart(runs)]
    names = _names(found)
    return [Case(name, tuple(_one_a_seed(runs))) for name, runs in zip(names, found, strict=True)]


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


def _names(groups: Sequence[list[Result]]) -> list[str]:
    plain = [_common_name(runs) for runs in groups]
    configs = [{k: v for k, v in runs[0].config.items() if k not in _FREE} for runs in groups]
    named = []
    for name, config in zip(plain, configs, strict=True):
        same = [other for other, other_name in zip(configs, plain, strict=True) if other_name == name]
        own = flat(config)
        details = [f"{key.rpartition('.')[2]}={own[key]}" for key in differing(same) if key in own]
        named.append(f"{name} ({', '.join(details)})" if details else name)
    return named


def _common_name(runs: Sequence[Result]) -> str:
    """The name of all runs; "a" of "a-seed0" and "a-seed1"."""
    names = {run.name: re.sub(r"[\s_-]+(seed|s)?[\s_=-]*\d+$", "", run.name) for run in runs}
    if len(names) > 1 and len(set(names.values())) == 1:
        return next(iter(names.values()))
    return runs[0].name or "run"
