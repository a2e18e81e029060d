"""The list of runs, kept between requests: of thousands of runs only those that have changed are read again."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.results.cases import flat

#: Rounds whose mean length tells how long the rest will take.
_PACE_ROUNDS = 20
#: Values in one statement: SQLite limits them, and more would not be quicker.
_CHUNK = 500

_FACTS = (
    *("id", "fingerprint", "name", "seed", "rounds", "done", "status"),
    *("error", "created", "started", "ended", "pid", "host"),
)
_TOTALS = ("client_trainings", "bytes", "virtual_seconds", "seconds")


@dataclass(slots=True)
class Entry:
    """One run as the list shows it."""

    facts: dict[str, Any]
    #: The config as the store has it: read only for runs that are looked at.
    written: str = ""
    #: Setting → its value as text. Runs that differ in seed and name alone share one table: do not change it.
    settings: dict[str, str] = field(default_factory=dict)
    #: The last value of every metric.
    metrics: dict[str, float | None] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    #: Rounds that the totals count.
    counted: int = 0
    #: Seconds that a round takes at present; 0 where nothing is known.
    pace: float = 0.0
    last_round_ended: float = 0.0
    status: str = ""
    sweeps: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.written)
        return found

    @property
    def method(self) -> str:
        return self.settings.get("selection.method", self.settings.get("selection.object", ""))

    def seconds_left(self, now: float) -> float | None:
        """How long the run still takes if its rounds go on as they did; None where that cannot be said."""
        if self.status != "running" or not self.pace:
            return None
        passed = max(0.0, now - self.last_round_ended) if self.last_round_ended else 0.0
        rounds: int = self.facts["rounds"] - self.facts["done"]
        return max(0.0, self.pace * rounds - passed)


class Catalogue:
    """All runs of a store, in the order in which they were planned."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._by_fingerprint: dict[str, int] = {}
        #: Configs without seed and name → their settings.
        self._settings: dict[str, dict[str, str]] = {}

    def refresh(
        self, connection: sqlite3.Connection, being_run: Callable[[list[int]], set[int]]
    ) -> tuple[set[int], bool]:
        """Read what has changed: the ids of those runs, and whether runs have come or gone."""
        rows = _plain(connection, f"SELECT {', '.join(_FACTS)} FROM experiments ORDER BY id").fetchall()
        known = [dict(zip(_FACTS, row, strict=True)) for row in rows]
        alive = being_run([facts["id"] for facts in known if facts["status"] == "running"])
        changed = set()
        new: list[int] = []
        for facts in known:
            run, status = facts["id"], facts["status"]
            entry = self.entries.get(run)
            if status == "running" and run not in alive:
                status = "interrupted"
            if entry is None or entry.facts["fingerprint"] != facts["fingerprint"]:
                new.append(run)
                changed.add(run)
                self.entries[run] = Entry(facts, status=status)
            elif status != entry.status or facts != entry.facts:
                changed.add(run)
                if facts["done"] < entry.counted:  # rolled back after a power cut
                    entry.totals, entry.counted = {}, 0
                entry.facts, entry.status = facts, status
        gone = self.entries.keys() - {facts["id"] for facts in known}
        for run in gone:
            del self.entries[run]
        self._read_configs(connection, new)
        if new or gone:
            self._read_sweeps(connection)
            self.entries = dict(sorted(self.entries.items()))
            self._by_fingerprint = {entry.facts["fingerprint"]: run for run, entry in self.entries.items()}
        begun = [run for run in changed if self.entries[run].facts["done"] != self.entries[run].counted]
        self._read_metrics(connection, begun)
        self._read_totals(connection, begun)
        self._read_pace(connection, [run for run in begun if self.entries[run].status == "running"])
        return changed, bool(new or gone)

    def find(self, fingerprint: str) -> Entry | None:
        run = self._by_fingerprint.get(fingerprint)
        return None if run is None else self.entries[run]

    def as_columns(self) -> dict[str, Any]:
        """Everything for the page, column by column: quicker to write and to read than a row for every run."""
        entries, now = list(self.entries.values()), time.time()
        columns: dict[str, list[Any]] = {
            name: [entry.facts[name] for entry in entries]
            for name in ("fingerprint", "name", "seed", "rounds", "done", "error", "started", "ended")
        }
        columns["status"] = [entry.status for entry in entries]
        columns["method"] = [entry.method for entry in entries]
        columns["left"] = [entry.seconds_left(now) for entry in entries]
        columns["sweeps"] = [", ".join(entry.sweeps) for entry in entries]
        for name in _TOTALS:
            columns[name] = [entry.totals.get(name) for entry in entries]
        measured = dict.fromkeys(name for entry in entries for name in entry.metrics)
        metrics = {name: [entry.metrics.get(name) for entry in entries] for name in measured}
        return {"columns": columns, "metrics": metrics, "settings": _settings(entries)}

    def changes(self, runs: Iterable[int]) -> list[dict[str, Any]]:
        """What of some runs changes while they run."""
        now = time.time()
        return [
            {
                "fingerprint": entry.facts["fingerprint"],
                "name": entry.facts["name"],
                "done": entry.facts["done"],
                "rounds": entry.facts["rounds"],
                "status": entry.status,
                "error": entry.facts["error"],
                "started": entry.facts["started"],
                "ended": entry.facts["ended"],
                "left": entry.seconds_left(now),
                "totals": entry.totals,
                "metrics": entry.metrics,
            }
            for entry in (self.entries[run] for run in sorted(runs) if run in self.entries)
        ]

    # --- reading -----------------------------------------------------------------------------------------

    def _read_configs(self, connection: sqlite3.Connection, runs: Sequence[int]) -> None:
        """Settings are taken apart once for all seeds: of thousands of runs, most differ in nothing else."""
        common_part = "json_remove(config, '$.name', '$.seed')"
        statement = f"SELECT id, config, {common_part} FROM experiments WHERE id IN ({{}})"
        for run, config, common in _in_chunks(connection, statement, runs):
            if common not in self._settings:
                self._settings[common] = {
                    key: value if isinstance(value, str) else json.dumps(value)
                    for key, value in flat(json.loads(common)).items()
                }
            self.entries[run].written, self.entries[run].settings = config, self._settings[common]

    def _read_sweeps(self, connection: sqlite3.Connection) -> None:
        members: dict[int, list[str]] = {}
        for row in connection.execute("SELECT experiment, sweep FROM sweeps ORDER BY sweep"):
            members.setdefault(row["experiment"], []).append(row["sweep"])
        for run, entry in self.entries.items():
            entry.sweeps = tuple(members.get(run, ()))

    def _read_metrics(self, connection: sqlite3.Connection, runs: Sequence[int]) -> None:
        """The last evaluation. Mostly that is the last round, which is quicker to find than to search for."""
        of_round = (
            "SELECT m.experiment, m.name, m.value FROM experiments e "
            "JOIN metrics m ON m.experiment = e.id AND m.round = {} WHERE e.id IN ({{}})"
        )
        last = (
            "(SELECT round FROM metrics WHERE experiment = e.id AND value IS NOT NULL ORDER BY round DESC LIMIT 1)"
        )
        found: dict[int, dict[str, float | None]] = {run: {} for run in runs}
        for run, name, value in _in_chunks(connection, of_round.format("e.done"), runs):
            found[run][name] = value
        without = [run for run in runs if all(value is None for value in found[run].values())]
        for run, name, value in _in_chunks(connection, of_round.format(last), without):
            found[run][name] = value
        for run in runs:
            self.entries[run].metrics = found[run]

    def _read_totals(self, connection: sqlite3.Connection, runs: Sequence[int]) -> None:
        """Only rounds that are not counted yet: a run of thousands of rounds is not summed anew each time."""
        sums = "sum(client_trainings), sum(bytes_down + bytes_up), sum(virtual_seconds), sum(seconds)"
        fresh = [run for run in runs if not self.entries[run].counted]
        statement = f"SELECT experiment, {sums} FROM ledger WHERE experiment IN ({{}}) GROUP BY experiment"
        found = list(_in_chunks(connection, statement, fresh))
        for run in set(runs) - set(fresh):
            since = self.entries[run].counted
            row = connection.execute(
                f"SELECT {sums} FROM ledger WHERE experiment = ? AND round > ?", (run, since)
            ).fetchone()
            found.append((run, *row))
        for run, *values in found:
            totals = self.entries[run].totals
            self.entries[run].totals = {
                name: totals.get(name, 0) + (value or 0) for name, value in zip(_TOTALS, values, strict=True)
            }
        for run in runs:
            self.entries[run].counted = self.entries[run].facts["done"]

    def _read_pace(self, connection: sqlite3.Connection, runs: Sequence[int]) -> None:
        """From one round's end to the next, which has everything in it; of one round alone its own length."""
        for run in runs:
            entry = self.entries[run]
            first, last, count = connection.execute(
                "SELECT min(ended), max(ended), count(*) FROM (SELECT ended FROM rounds WHERE experiment = ? "
                "AND ended >= ? ORDER BY round DESC LIMIT ?)",  # not those before an interruption
                (run, entry.facts["started"], _PACE_ROUNDS),
            ).fetchone()
            own = connection.execute(
                "SELECT avg(seconds) FROM (SELECT seconds FROM ledger WHERE experiment = ? "
                "ORDER BY round DESC LIMIT ?)",
                (run, _PACE_ROUNDS),
            ).fetchone()
            entry.pace = (last - first) / (count - 1) if count > 1 else own[0] or 0.0
            entry.last_round_ended = last or 0.0


def _settings(entries: Sequence[Entry]) -> dict[str, Any]:
    """Setting → its distinct values, and for every run the place of its own (−1: it does not have it).

    Those that all runs have in common are left out: nothing can be told apart by them.
    """
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for entry in entries for key in entry.settings):
        places: dict[str, int] = {}
        own = [
            places.setdefault(value, len(places)) if (value := entry.settings.get(key)) is not None else -1
            for entry in entries
        ]
        if len(places) > 1 or -1 in own:
            found[key] = {"values": list(places), "own": own}
    return found


def _in_chunks(connection: sqlite3.Connection, statement: str, runs: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Rows about some runs, chunk by chunk: all of them at once would keep the garbage collector busy."""
    for start in range(0, len(runs), _CHUNK):
        part = runs[start : start + _CHUNK]
        yield from _plain(connection, statement.format(", ".join("?" * len(part))), part).fetchall()


def _plain(connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Rows as plain tuples, which are made and taken apart faster than named ones."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, values)
