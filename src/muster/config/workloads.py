"""The papers' federations by name: data, partition, model, local training and cohort size as config sections.

They live in TOML files, one per paper. A workload starts from a base of its file and changes some keys. It leaves
open which methods select and aggregate: that is what experiments on it compare. Tables called `provenance` say
who decided each value; those of a workload are asked before those of its base.
"""

from __future__ import annotations

import copy
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from muster.config.provenance import TABLE, Sources
from muster.core.errors import ConfigError, nearest


def workload(name: str) -> dict[str, Any]:
    """The config sections (and `rounds`, where the paper states it) of a named workload; a fresh copy.

    The paper's stars may be written as such: "terraform-fmnist-1*" is "terraform-fmnist-1-star".
    """
    return copy.deepcopy(_known(name).sections)


def workload_sources(name: str) -> Sources:
    """Who decided the values of a workload."""
    return _known(name).sources


def workload_summaries() -> dict[str, str]:
    """One line about each workload, by name."""
    return {name: known.summary for name, known in sorted(_workloads().items())}


@dataclass(frozen=True)
class _Workload:
    summary: str
    sections: dict[str, Any]
    sources: Sources


def _known(name: str) -> _Workload:
    name, known = name.replace("*", "-star"), _workloads()
    if name not in known:
        raise ConfigError(f"unknown workload '{name}'", expected=nearest(name, known))
    return known[name]


@cache
def _workloads() -> dict[str, _Workload]:
    found: dict[str, _Workload] = {}
    # A paper's workloads are in its room, beside its published numbers: data, found without importing that room.
    for room in sorted((resources.files("muster") / "papers").iterdir(), key=lambda entry: entry.name):
        file = room / "workloads.toml"
        if file.is_file():
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            for name, changes in content["workloads"].items():
                found[name] = _workload(name, content["base"][changes.pop("base")], changes)
    return found


def _workload(name: str, base: dict[str, Any], changes: dict[str, Any]) -> _Workload:
    of_base = Sources().within(base.get(TABLE, {}), f"the base of workload {name}")
    sources = of_base.within(changes.get(TABLE, {}), f"workload {name}")
    sections = _merged(base, changes)
    sections.pop(TABLE, None)
    return _Workload(sections.pop("summary"), sections, sources)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; sections are merged key by key, unless they name another component."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict) and "scheme" not in value:
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
