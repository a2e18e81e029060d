"""Which runs belong together: by everything but the seed, or by the keys that are asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from muster.config.identity import determining
from muster.core.errors import ConfigError, nearest
from muster.results.cases import Case, cases, differing, flat
from muster.results.problems import label
from muster.server.result import Result


def grouped(results: Sequence[Result], by: Sequence[str] = ()) -> list[Case]:
    """Cases in the order in which they first occur; with `by`, runs that agree in these keys are one case."""
    if not by:
        return cases(results)
    check_keys(by, results)
    groups: dict[str, list[Result]] = {}
    for result in _without_repeats(results):
        settings = _named_settings(result)
        groups.setdefault(", ".join(label(key, settings.get(key)) for key in by), []).append(result)
    return [Case(name, tuple(runs)) for name, runs in groups.items()]


def varying(runs: Sequence[Result]) -> list[str]:
    """The settings other than the seed that differ between runs of one case."""
    return [key for key in differing([determining(run.config) for run in runs]) if key != "seed"]


def _without_repeats(results: Sequence[Result]) -> list[Result]:
    """Of runs with the same settings and seed the longest."""
    longest: dict[str, Result] = {}
    for result in results:
        key = json.dumps([result.name, determining(result.config)], sort_keys=True)
        if key not in longest or len(result.records) > len(longest[key].records):
            longest[key] = result
    return list(longest.values())


def _named_settings(result: Result) -> dict[str, Any]:
    return flat(result.config) | {"name": result.name}


def check_keys(keys: Sequence[str], results: Sequence[Result]) -> None:
    """Refuse settings that no run has."""
    known = {key for result in results for key in _named_settings(result)}
    for key in keys:
        if key not in known:
            raise ConfigError(f"no run has the setting '{key}'", expected=nearest(key, known))
