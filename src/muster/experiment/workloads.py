"""The papers' federations by name: data, partition, model, local training and cohort size as config sections.

They live in TOML files, one a paper. A workload starts from a base of its file and changes some keys. It leaves
open which methods select and aggregate: that is what experiments on it compare.
"""

from __future__ import annotations

import copy
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from muster.errors import ConfigError, nearest


def workload(name: str) -> dict[str, Any]:
    """The config sections (and `rounds`, where the paper states it) of a named workload; a fresh copy.

    The paper's stars may be written as such: "terraform-fmnist-1*" is "terraform-fmnist-1-star".
    """
    name = name.replace("*", "-star")
    known = _workloads()
    if name not in known:
        raise ConfigError(f"unknown workload '{name}'", expected=nearest(name, known))
    sections = copy.deepcopy(known[name])
    del sections["summary"]
    return sections


def workload_summaries() -> dict[str, str]:
    """One line about each workload, by name."""
    return {name: str(known["summary"]) for name, known in sorted(_workloads().items())}


@cache
def _workloads() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    folder = resources.files("muster.experiment") / "presets" / "workloads"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            for name, changes in content["workloads"].items():
                base = content["base"][changes.pop("base")]
                found[name] = _merged(base, changes)
    return found


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; sections are merged key by key, unless they name another component."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict) and "scheme" not in value:
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
