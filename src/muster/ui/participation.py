"""Who took part when: read once, and then only the rounds that are new."""

from __future__ import annotations

import base64
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.results.store.codec import unpack_accuracies, unpack_ids, unpack_values, unpack_weights
from muster.ui.curves import thinned

#: Cells of a map: more than a screen shows are counted together.
MAX_COLUMNS, MAX_ROWS = 1200, 600
#: Evaluations of which a client's own accuracy is drawn.
_MAX_EVALUATIONS = 400

#: What can have become of a client in a training, in the order of the map's planes.
TRAINED, LEFT_OUT, REFUSED, FAILED = range(4)
FATES = ("trained", "left out", "refused", "failed")
_EVENTS = {"rejected": REFUSED, "client failed": FAILED}


@dataclass
class Participation:
    """Every (round, client) of a run in which something became of the client, as columns."""

    done: int = 0
    rounds: list[Ints] = field(default_factory=list)
    clients: list[Ints] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    fates: list[Ints] = field(default_factory=list)

    def read_on(self, connection: sqlite3.Connection, run: int, done: int) -> None:
        """Take in the rounds after those that are known."""
        if done < self.done:  # rolled back
            self.done = 0
            for column in (self.rounds, self.clients, self.weights, self.fates):
                column.clear()
        rows = connection.execute(
            "SELECT round, clients, weights, left_out FROM selections WHERE experiment = ? AND round > ? "
            "AND round <= ? ORDER BY round, training",
            (run, self.done, done),
        )
        for number, clients, weights, left_out in rows:
            self._add(number, unpack_ids(clients), np.array(unpack_weights(weights)), TRAINED)
            if left_out is not None:
                self._add(number, unpack_ids(left_out), None, LEFT_OUT)
        troubles = connection.execute(
            "SELECT round, client, kind FROM events WHERE experiment = ? AND round > ? AND round <= ? "
            "AND kind IN ('rejected', 'client failed') AND client IS NOT NULL",
            (run, self.done, done),
        )
        for number, client, kind in troubles:
            self._add(number, np.array([client]), None, _EVENTS[kind])
        self.done = done

    def _add(self, number: int, clients: Ints, weights: Floats | None, fate: int) -> None:
        self.rounds.append(np.full(len(clients), number))
        self.clients.append(clients)
        self.weights.append(np.zeros(len(clients)) if weights is None else weights)
        self.fates.append(np.full(len(clients), fate))

    @property
    def columns(self) -> tuple[Ints, Ints, Floats, Ints]:
        """Rounds, clients, weights, fates; kept in one piece each."""
        for column, kind in ((self.rounds, np.int64), (self.clients, np.int64), (self.fates, np.int64)):
            column[:] = [np.concatenate([np.empty(0, kind), *column])]
        self.weights[:] = [np.concatenate([np.empty(0), *self.weights])]
        return self.rounds[0], self.clients[0], self.weights[0], self.fates[0]

    def as_it_is(self) -> Participation:
        """A copy that keeps to the rounds that are known now, whatever others read on. The columns are shared."""
        rounds, clients, weights, fates = self.columns
        return Participation(self.done, [rounds], [clients], [weights], [fates])

    @property
    def highest(self) -> int:
        """One more than the highest client that was seen."""
        return int(self.columns[1].max(initial=-1)) + 1


def client_count(config: dict[str, Any], seen: int, accuracies: Floats | None) -> int:
    """How many clients a run has, as far as its config, its selections and its evaluations tell."""
    partition = config.get("partition")
    said = partition.get("clients", 0) if isinstance(partition, dict) else 0
    tested = 0 if accuracies is None else len(accuracies)
    return max(seen, tested, said if isinstance(said, int) else 0)


def last_accuracies(connection: sqlite3.Connection, run: int) -> Floats | None:
    """The clients' accuracies on their own data, when they were last tested."""
    row = connection.execute(
        "SELECT client_accuracy FROM rounds WHERE experiment = ? AND client_accuracy IS NOT NULL "
        "ORDER BY round DESC LIMIT 1",
        (run,),
    ).fetchone()
    return None if row is None else unpack_accuracies(row[0]).astype(np.float64)


def client_table(taken: Participation, clients: int, accuracies: Floats | None) -> dict[str, list[Any]]:
    """One entry per client in every column."""
    rounds, ids, weights, fates = taken.columns
    table: dict[str, list[Any]] = {"client": list(range(clients))}
    for fate, name in enumerate(FATES):
        table[name] = np.bincount(ids[fates == fate], minlength=clients).tolist()
    last = np.zeros(clients, dtype=np.int64)
    trained = fates == TRAINED
    np.maximum.at(last, ids[trained], rounds[trained])
    table["last round"] = [number or None for number in last.tolist()]
    table["weight"] = np.bincount(ids, weights, minlength=clients).tolist()
    if accuracies is not None:
        own = np.full(clients, np.nan)
        own[: len(accuracies)] = accuracies
        table["accuracy"] = [None if np.isnan(value) else value for value in own.tolist()]
    return table


def selection_map(
    taken: Participation,
    clients: int,
    order: Ints,
    *,
    max_columns: int = MAX_COLUMNS,
    max_rows: int = MAX_ROWS,
) -> dict[str, Any]:
    """Counts of what became of clients, rows in the given order; planes of bytes, 255 stands for more."""
    rounds, ids, _, fates = taken.columns
    width, height = min(max_columns, max(1, taken.done)), min(max_rows, max(1, clients))
    place = np.empty(clients, dtype=np.int64)
    place[order] = np.arange(clients)
    columns = (rounds - 1) * width // max(1, taken.done)
    rows = place[ids] * height // max(1, clients)
    planes = []
    for fate in range(len(FATES)):
        chosen = fates == fate
        counts = np.bincount(rows[chosen] * width + columns[chosen], minlength=width * height)
        # The count of one plane may exceed a byte only where hundreds of rounds share a column.
        planes.append(np.minimum(counts, 255).astype(np.uint8) if chosen.any() else np.empty(0, np.uint8))
    return {
        "width": width,
        "height": height,
        "rounds": taken.done,
        "clients": clients,
        "order": order.tolist(),
        "planes": {
            name: base64.b64encode(plane.tobytes()).decode() if len(plane) else ""
            for name, plane in zip(FATES, planes, strict=True)
        },
    }


def ordered(table: dict[str, list[Any]], by: str) -> Ints:
    """Clients by a column of their table, most first; what is not known comes last, ties stay in their order."""
    values = np.array([np.nan if value is None else value for value in table[by]], dtype=np.float64)
    return np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable")


def one_client(connection: sqlite3.Connection, run: int, client: int, taken: Participation) -> dict[str, Any]:
    """Everything that the store has about one client."""
    rounds, ids, weights, fates = taken.columns
    own = ids == client
    return {
        "client": client,
        "history": [
            {"round": number, "weight": weight if fate == TRAINED else None, "fate": FATES[fate]}
            for number, weight, fate in zip(
                rounds[own].tolist(), weights[own].tolist(), fates[own].tolist(), strict=True
            )
        ],
        "reports": _reports_of(connection, run, client),
        "accuracy": _accuracies_of(connection, run, client),
        "troubles": [
            {"round": row["round"], "kind": row["kind"], "detail": row["detail"]}
            for row in connection.execute(
                "SELECT round, kind, detail FROM events WHERE experiment = ? AND client = ? ORDER BY id LIMIT 500",
                (run, client),
            )
        ],
    }


def at_cell(connection: sqlite3.Connection, run: int, client: int, number: int) -> dict[str, Any]:
    """What became of one client in one round, and what it told."""
    facts: dict[str, Any] = {"client": client, "round": number, "trainings": [], "told": {}}
    for training, clients, weights, left_out in connection.execute(
        "SELECT training, clients, weights, left_out FROM selections WHERE experiment = ? AND round = ?",
        (run, number),
    ):
        at = np.flatnonzero(unpack_ids(clients) == client)
        if len(at):
            facts["trainings"].append({"training": training, "weight": unpack_weights(weights)[int(at[0])]})
        elif left_out is not None and client in unpack_ids(left_out):
            facts["trainings"].append({"training": training, "left out": True})
    for signal, clients, values in connection.execute(
        'SELECT signal, clients, "values" FROM reports WHERE experiment = ? AND round = ?', (run, number)
    ):
        at = np.flatnonzero(unpack_ids(clients) == client)
        told = unpack_values(values)
        if len(at) and told.ndim == 1:
            facts["told"][signal] = _finite(float(told[at[0]]))
    facts["troubles"] = [
        {"kind": row["kind"], "detail": row["detail"]}
        for row in connection.execute(
            "SELECT kind, detail FROM events WHERE experiment = ? AND round = ? AND client = ?",
            (run, number, client),
        )
    ]
    return facts


def _reports_of(connection: sqlite3.Connection, run: int, client: int) -> dict[str, dict[str, list[Any]]]:
    """Signal → rounds and values of those signals that are one number per client, thinned out."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    rows = connection.execute(
        'SELECT round, signal, clients, "values" FROM reports WHERE experiment = ? ORDER BY round, exchange',
        (run,),
    )
    for number, signal, clients, values in rows:
        at = np.flatnonzero(unpack_ids(clients) == client)
        told = unpack_values(values)
        if len(at) and told.ndim == 1:
            numbers, series = found.setdefault(signal, ([], []))
            numbers.append(number)
            series.append(float(told[at[0]]))
    shown = {}
    for signal, (numbers, series) in found.items():
        kept = thinned(np.where(np.isfinite(series), series, np.nan), _MAX_EVALUATIONS // 2)
        shown[signal] = {
            "rounds": np.array(numbers, dtype=np.int64)[kept].tolist(),
            "values": np.array(series)[kept].tolist(),
        }
    return shown


def _accuracies_of(connection: sqlite3.Connection, run: int, client: int) -> dict[str, list[Any]]:
    numbers = [
        row[0]
        for row in connection.execute(
            "SELECT round FROM rounds WHERE experiment = ? AND client_accuracy IS NOT NULL ORDER BY round", (run,)
        )
    ]
    if len(numbers) > _MAX_EVALUATIONS:
        places = np.unique(np.linspace(0, len(numbers) - 1, _MAX_EVALUATIONS).astype(np.int64))
        numbers = [numbers[place] for place in places.tolist()]
    kept, values = [], []
    for number in numbers:
        blob = connection.execute(
            "SELECT client_accuracy FROM rounds WHERE experiment = ? AND round = ?", (run, number)
        ).fetchone()[0]
        accuracies = unpack_accuracies(blob)
        if client < len(accuracies) and not np.isnan(accuracies[client]):
            kept.append(number)
            values.append(float(accuracies[client]))
    return {"rounds": kept, "values": values}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
