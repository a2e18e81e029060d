"""One run but for its curves and its clients: facts, costs, disclosures, events, time, how to repeat it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from typing import Any

import numpy as np

from muster.config.toml import to_toml
from muster.core.parameters import ParameterSpec
from muster.results.cases import Case
from muster.results.settings import recipe
from muster.results.store.codec import COST_COLUMNS, unpack_ids, unpack_weights
from muster.selection.history import History
from muster.server.ledger import Ledger
from muster.server.record import OUTCOMES
from muster.server.result import Result
from muster.ui.catalogue import Entry
from muster.ui.curves import metric_names

MAX_EVENTS = 500
#: Trainings of a timeline: more cannot be told apart on a screen.
MAX_FLIGHTS = 6000


def overview(connection: sqlite3.Connection, entry: Entry) -> dict[str, Any]:
    """What the head of the page says, and what the other parts need to know."""
    run = entry.facts["id"]
    row = connection.execute("SELECT code_version, environment FROM experiments WHERE id = ?", (run,)).fetchone()
    timed = connection.execute("SELECT 1 FROM flights WHERE experiment = ? LIMIT 1", (run,)).fetchone()
    return {
        **{key: entry.facts[key] for key in ("fingerprint", "name", "seed", "rounds", "done", "error")},
        **{key: entry.facts[key] for key in ("created", "started", "ended", "pid", "host")},
        "status": entry.status,
        "left": entry.seconds_left(time.time()),
        "method": entry.method,
        "aggregation": _named(entry.config, "aggregation"),
        "sweeps": list(entry.sweeps),
        "totals": entry.totals,
        "metrics": entry.metrics,
        "metric_names": metric_names(connection, run),
        "timed": timed is not None,
        "code_version": row["code_version"],
        "environment": json.loads(row["environment"]),
        "groups": last_groups(connection, run),
        "config": _configuration(entry),
    }


def _named(config: dict[str, Any], section: str) -> str:
    values = config.get(section)
    return str(values.get("method", values.get("object", ""))) if isinstance(values, dict) else ""


def _configuration(entry: Entry) -> dict[str, Any]:
    """The settings as TOML, and the commands that run them again; none where parts were made in Python."""
    settings = {key: value for key, value in entry.config.items() if value != {}}
    again = recipe([Case(entry.facts["name"], (_bare_result(entry),))])
    return {
        "toml": to_toml(settings),
        "file": again.file_name if again else "",
        "content": again.content if again else "",
        "commands": again.commands if again else [],
    }


def _bare_result(entry: Entry) -> Result:
    return Result(
        np.empty(0, dtype=np.float32),
        [],
        Ledger(),
        History(0),
        ParameterSpec(()),
        name=entry.facts["name"],
        config=entry.config,
    )


def last_groups(connection: sqlite3.Connection, run: int) -> list[list[Any]]:
    """(class, attribute, accuracy, samples) of the last evaluation; empty where the data has no attributes."""
    row = connection.execute(
        "SELECT groups FROM rounds WHERE experiment = ? AND groups IS NOT NULL ORDER BY round DESC LIMIT 1", (run,)
    ).fetchone()
    return [] if row is None else list(json.loads(row[0]))


def costs(connection: sqlite3.Connection, run: int) -> dict[str, Any]:
    """All that a run has cost, and what its clients have disclosed."""
    sums = ", ".join(f"sum({name})" for name in COST_COLUMNS)
    total = connection.execute(f"SELECT {sums} FROM ledger WHERE experiment = ?", (run,)).fetchone()
    told: Counter[str] = Counter()
    rounds_with: Counter[str] = Counter()
    # Rounds of a run tell the same kinds the same number of times, mostly: the database counts the texts.
    for text, times in connection.execute(
        "SELECT disclosed, count(*) FROM ledger WHERE experiment = ? GROUP BY disclosed", (run,)
    ):
        for kind, number in json.loads(text).items():
            told[kind] += number * times
            rounds_with[kind] += times
    filtered: dict[str, Counter[str]] = {}
    for (text,) in connection.execute(
        "SELECT filtered FROM selections WHERE experiment = ? AND filtered IS NOT NULL", (run,)
    ):
        for name, counts in json.loads(text).items():
            filtered.setdefault(name, Counter()).update(counts)
    return {
        "total": {name: total[at] or 0 for at, name in enumerate(COST_COLUMNS)},
        "disclosed": [
            {"kind": kind, "times": times, "rounds": rounds_with[kind]} for kind, times in told.most_common()
        ],
        "filtered": [{"filter": name, **counts} for name, counts in filtered.items()],
    }


def events(connection: sqlite3.Connection, run: int, kind: str = "", before: int | None = None) -> dict[str, Any]:
    """What happened, the latest first, and how often each kind did."""
    counts = {
        row[0]: row[1]
        for row in connection.execute(
            "SELECT kind, count(*) FROM events WHERE experiment = ? GROUP BY kind ORDER BY count(*) DESC", (run,)
        )
    }
    rows = connection.execute(
        "SELECT * FROM events WHERE experiment = ? AND (? = '' OR kind = ?) AND id < ? ORDER BY id DESC LIMIT ?",
        (run, kind, kind, before if before is not None else 1 << 62, MAX_EVENTS),
    ).fetchall()
    names = ("id", "time", "round", "kind", "training", "client", "detail")
    return {"counts": counts, "events": [{name: row[name] for name in names} for row in rows]}


def timeline(
    connection: sqlite3.Connection, run: int, start: float | None = None, end: float | None = None
) -> dict[str, Any]:
    """Who worked from when to when in virtual time, within a window; without one, the last that fit a screen."""
    (whole,) = connection.execute(
        "SELECT ifnull(max(virtual_ended), 0.0) FROM rounds WHERE experiment = ?", (run,)
    ).fetchone()
    first, last = start or 0.0, whole if end is None else end
    rows = connection.execute(
        "SELECT f.round, f.clients, f.started, f.ended, f.staleness, f.outcomes FROM flights f "
        "JOIN rounds r ON r.experiment = f.experiment AND r.round = f.round "
        "WHERE f.experiment = ? AND r.virtual_ended >= ? ORDER BY f.round DESC, f.training",
        (run, first),
    )
    found: dict[str, list[Any]] = {
        name: [] for name in ("round", "client", "started", "ended", "staleness", "outcome")
    }
    cut = False
    for number, clients, started, ended, staleness, outcomes in rows:
        began, landed = np.array(unpack_weights(started)), np.array(unpack_weights(ended))
        # Who begins in the window may land long after it, in a later round.
        seen = (landed >= first) & (began <= last)
        if len(found["client"]) + seen.sum() > MAX_FLIGHTS and found["client"]:
            cut = True
            break
        found["round"] += [number] * int(seen.sum())
        found["client"] += unpack_ids(clients)[seen].tolist()
        found["started"] += began[seen].tolist()
        found["ended"] += landed[seen].tolist()
        found["staleness"] += unpack_ids(staleness)[seen].tolist()
        found["outcome"] += np.frombuffer(outcomes, dtype=np.uint8)[seen].tolist()
    rounds = connection.execute(
        "SELECT round, virtual_began, virtual_ended FROM rounds WHERE experiment = ? AND round BETWEEN ? AND ? "
        "ORDER BY round",
        (run, min(found["round"], default=0), max(found["round"], default=0)),
    ).fetchall()
    return {
        "flights": found,
        "outcomes": list(OUTCOMES),
        "rounds": [list(row) for row in rounds],
        "whole": whole,
        "cut": cut,
    }
