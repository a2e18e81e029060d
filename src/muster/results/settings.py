"""What runs share and in what they differ, and how to run them again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.config.identity import determining
from muster.config.toml import to_toml, toml_value
from muster.results.cases import Case, differing, flat
from muster.server.result import Result

_WORD, _TOML_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*"), ("true", "false", "inf", "nan")


@dataclass(frozen=True)
class Repetition:
    """A file and the commands that run everything again with it."""

    file_name: str
    content: str
    commands: list[str]


def shared_settings(results: Sequence[Result]) -> dict[str, Any]:
    """The settings that all runs have with the same value, in sections; empty sections are left out."""
    rows = [determining(result.config) for result in results]
    different = set(differing(rows))
    return nested({key: value for key, value in flat(rows[0]).items() if key not in different})


def own_settings(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    """The settings of a run, as `section.key`, that not all runs share."""
    different = set(differing([determining(other.config) for other in results]))
    return {key: value for key, value in flat(determining(result.config)).items() if key in different}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key` as nested sections."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        *sections, key = path.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return result


def recipe(found: Sequence[Case]) -> Repetition | None:
    """A sweep where all cases have the same seeds, otherwise single runs. None: parts were Python objects."""
    results = [run for case in found for run in case.runs]
    if any(_has_objects(determining(result.config)) for result in results):
        return None
    if len(results) > 1 and len({tuple(case.seeds) for case in found}) == 1:
        return _as_sweep(found)
    commands = [
        shlex.join(["muster", "run", "experiment.toml", *_options(own_settings(result, results))])
        for result in results
    ]
    return Repetition("experiment.toml", to_toml(shared_settings(results)), commands)


def _as_sweep(found: Sequence[Case]) -> Repetition:
    results = [run for case in found for run in case.runs]
    sections: list[dict[str, Any]] = []
    for case in found:
        own = {key: value for key, value in own_settings(case.runs[0], results).items() if key != "seed"}
        sections.append({"name": case.name} | nested(own))
    base = {key: value for key, value in shared_settings(results).items() if key != "seed"}
    sweep = {"name": "repeated", "seeds": found[0].seeds, "base": base, "cases": sections}
    commands = ["muster sweep repeat.toml --workspace repeated", "muster compare repeated --workspace repeated"]
    return Repetition("repeat.toml", to_toml(sweep), commands)


def _options(own: Mapping[str, Any]) -> list[str]:
    return [
        word
        for key, value in own.items()
        if value is not None
        for word in ("--set", f"{key}={value if _is_word(value) else toml_value(value)}")
    ]


def _is_word(value: Any) -> bool:
    """A text that the command line takes as it is: no other TOML value looks like it."""
    return isinstance(value, str) and bool(_WORD.fullmatch(value)) and value not in _TOML_WORDS


def _has_objects(settings: Mapping[str, Any]) -> bool:
    """Components that were passed as objects are described, not spelled out."""
    sections = [
        section for value in settings.values() for section in (value if isinstance(value, list) else [value])
    ]
    return any(
        isinstance(section, Mapping) and "object" in section for section in sections
    ) or '"array"' in json.dumps(settings)
