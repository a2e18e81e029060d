"""What a store knows about a run, and how runs are chosen."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from muster.config.defaults import with_defaults
from muster.server.origin import Origin

#: `planned`: by a sweep, not begun; `interrupted`: its process ended without recording why (killed, power cut).
Status: TypeAlias = Literal["planned", "running", "interrupted", "stopped", "complete", "failed"]

_MISSING = object()
#: Columns and the types that their values have.
_KINDS: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    *((name, str) for name in ("fingerprint", "name", "error", "code_version", "host")),
    *((name, int) for name in ("id", "seed", "rounds", "done", "pid")),
    *((name, (int, float)) for name in ("created", "started", "seconds")),
    ("ended", (int, float, type(None))),
    ("config", dict),
    ("environment", dict),
)


@dataclass(frozen=True)
class Run:
    """One experiment of a store. Times are seconds since 1970."""

    id: int
    fingerprint: str
    #: Its name; the one that a sweep gives it, if it was chosen by a sweep.
    name: str
    seed: int
    config: dict[str, Any]
    #: Rounds that are planned, and rounds that are done.
    rounds: int
    done: int
    status: Status
    #: Why it failed.
    error: str
    code_version: str
    environment: dict[str, str]
    created: float
    started: float
    ended: float | None
    pid: int
    host: str
    #: Seconds that its rounds took.
    seconds: float
    #: Names of the sweeps that it belongs to.
    sweeps: list[str] = field(default_factory=list)

    @property
    def provenance(self) -> Origin:
        return Origin(
            self.fingerprint,
            self.status,
            self.error,
            self.code_version,
            self.environment,
            self.started,
            self.ended,
            self.seconds,
        )

    @property
    def method(self) -> str:
        """The selection method."""
        section = self.config.get("selection", {})
        return str(section.get("method", section.get("object", "")))


@dataclass(frozen=True)
class Event:
    """Something that happened to a run: started, resumed, stopped, complete, failed, rejected, client failed, …"""

    time: float
    round: int
    kind: str
    training: int | None
    client: int | None
    detail: str


def run_from(row: sqlite3.Row, alive: bool, sweeps: list[str], name: str | None) -> Run:
    """A run from its row; `alive`: a process holds the claim on it."""
    values = {key: row[key] for key in row.keys() if key not in ("durable", "config", "environment")}  # noqa: SIM118
    if values["status"] == "running" and not alive:
        values["status"] = "interrupted"
    values["name"] = name or values["name"]
    values |= {key: json.loads(row[key]) for key in ("config", "environment")}
    for key, kind in _KINDS:
        if not isinstance(values[key], kind):
            raise TypeError(f"a {type(values[key]).__name__} as '{key}'")
    if values["status"] not in get_args(Status) or not 0 <= values["done"] <= values["rounds"]:
        raise ValueError(f"a run that is {values['status']!r} after {values['done']} rounds")
    return Run(sweeps=sweeps, **values)


def fits(config: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a config has these values, given or by default; keys are dotted, as in `training.lr`."""
    complete = with_defaults(config, {key.partition(".")[0] for key in where})
    return all(value_at(complete, key, _MISSING) == value for key, value in where.items())


def value_at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value
