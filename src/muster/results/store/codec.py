"""Records as rows of the database, and back. What must be exact (clients, weights, metrics, costs) is exact.

Blobs are little-endian. Client ids: the width of a number in bytes, then the differences of neighbours. Reports:
the number of columns (0: one number per client) as two bytes, then float32 values.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from muster.core.arrays import Ints, Vector
from muster.core.errors import UNREADABLE, StoreError
from muster.server.ledger import Costs
from muster.server.record import OUTCOMES, Flown, GroupAccuracy, Observed, Report, RoundRecord, TrainingRecord

COST_COLUMNS = tuple(field.name for field in fields(Costs))
#: As the table has them: what a run disclosed is between the first costs and those that were added later.
_LATER_COSTS = ("wasted_trainings", "wasted_bytes", "wasted_seconds")
_FIRST_COSTS = tuple(name for name in COST_COLUMNS if name not in _LATER_COSTS)
_COLUMNS_BYTES = 2
#: Bytes of the accuracies of all clients: a damaged blob must not fill the memory.
_LARGEST = 2**28


def pack_ids(ids: Ints | list[int]) -> bytes:
    steps: Ints = np.array(ids, dtype=np.int64)
    steps[1:] -= steps[:-1].copy()
    width = next(w for w in (1, 2, 4, 8) if not len(steps) or _fits(steps, w))
    return bytes([width]) + steps.astype(f"<i{width}").tobytes()


def _fits(steps: Ints, width: int) -> bool:
    limits = np.iinfo(f"i{width}")
    return bool(limits.min <= steps.min() and steps.max() <= limits.max)


def unpack_ids(blob: bytes) -> Ints:
    return np.frombuffer(blob, dtype=f"<i{blob[0]}", offset=1).cumsum(dtype=np.int64)


def pack_weights(weights: list[float]) -> bytes:
    return np.asarray(weights, dtype="<f8").tobytes()


def unpack_weights(blob: bytes) -> list[float]:
    weights: list[float] = np.frombuffer(blob, dtype="<f8").tolist()
    return weights


def pack_values(values: Vector) -> bytes:
    columns = values.shape[1] if values.ndim > 1 else 0
    return columns.to_bytes(_COLUMNS_BYTES, "little") + values.astype("<f4").tobytes()


def unpack_values(blob: bytes) -> Vector:
    columns = int.from_bytes(blob[:_COLUMNS_BYTES], "little")
    values = np.frombuffer(blob, dtype="<f4", offset=_COLUMNS_BYTES)
    return values.reshape(-1, columns) if columns else values


def pack_accuracies(values: Vector) -> bytes:
    """As they are, or compressed where that is shorter: shares of few test samples repeat a lot."""
    whole = pack_values(values)
    return min(whole, zlib.compress(whole, level=1), key=len)


def unpack_accuracies(blob: bytes) -> Vector:
    # One number per client: what is not compressed begins with a zero, what is compressed never does.
    if blob[0] == 0:
        return unpack_values(blob)
    packed = zlib.decompressobj()
    try:
        values = packed.decompress(blob, _LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if packed.unconsumed_tail or not packed.eof:
        raise ValueError("accuracies that are damaged, or of more clients than there can be")
    return unpack_values(values)


def rows_of(record: RoundRecord, costs: Costs, disclosed: dict[str, int], ended: float) -> dict[str, list[Any]]:
    """The rows of each table for one round, without the leading id of the experiment."""
    accuracy = None if record.client_accuracy is None else pack_accuracies(record.client_accuracy)
    number = record.round
    return {
        "rounds": [
            (
                number,
                ended,
                _json(record.asks),
                _json(record.groups),
                _json(record.notes),
                accuracy,
                record.began,
                record.ended,
                None if record.observed is None else json.dumps(asdict(record.observed)),
            )
        ],
        "metrics": [(number, at, *item) for at, item in enumerate(record.metrics.items())],
        "selections": [
            (
                number,
                at,
                pack_ids(training.clients),
                pack_weights(training.weights),
                pack_ids(training.left_out) if training.left_out else None,
                _json(training.filtered),
            )
            for at, training in enumerate(record.trainings)
        ],
        "reports": [
            (number, report.exchange, name, report.trained, pack_ids(report.clients), pack_values(values))
            for report in record.reports
            for name, values in report.values.items()
        ],
        "ledger": [
            (
                number,
                *(getattr(costs, name) for name in _FIRST_COSTS),
                json.dumps(disclosed),
                *(getattr(costs, name) for name in _LATER_COSTS),
            )
        ],
        "flights": [
            (number, at, *_packed_flights(training.flown))
            for at, training in enumerate(record.trainings)
            if training.flown.clients
        ],
    }


def _packed_flights(flown: Flown) -> tuple[bytes, ...]:
    return (
        pack_ids(flown.clients),
        pack_weights(flown.started),
        pack_weights(flown.ended),
        pack_ids(flown.staleness),
        bytes(map(OUTCOMES.index, flown.outcome)),
    )


def _flown(row: Any) -> Flown:
    return Flown(
        unpack_ids(row["clients"]).tolist(),
        unpack_weights(row["started"]),
        unpack_weights(row["ended"]),
        unpack_ids(row["staleness"]).tolist(),
        [OUTCOMES[code] for code in row["outcomes"]],
    )


def events_of(record: RoundRecord) -> list[tuple[str, int | None, int | None, str]]:
    """(kind, training, client, detail) of what went wrong or changed in a round."""
    rows: list[tuple[str, int | None, int | None, str]] = []
    for at, training in enumerate(record.trainings):
        rows += [("rejected", at, client, why) for client, why in training.rejected.items()]
        rows += [("client failed", at, client, why) for client, why in training.failed.items()]
    return rows + [("noted", None, None, text) for text in record.events]


def _json(content: Any) -> str | None:
    return json.dumps(content) if content else None


@contextmanager
def readable() -> Iterator[None]:
    """Inside it, rows that have been tampered with or damaged raise a StoreError."""
    try:
        yield
    except UNREADABLE as error:
        raise StoreError(
            f"the store holds a row that cannot be read ({type(error).__name__}: {str(error)[:100]})",
            expected="rows as Muster wrote them",
            fix="restore the store from a backup, or delete the run (`muster runs delete`) and start it again",
        ) from error


def _typed(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"a {type(value).__name__} instead of a {kinds[0].__name__}")
    return value


class RecordReader:
    """Puts rows of several tables, each in the order of its rounds, together again."""

    def __init__(self, rows: dict[str, list[Any]]) -> None:
        self._rows = rows

    @readable()
    def records(self) -> list[RoundRecord]:
        records = {_typed(row["round"], int): _bare_record(row) for row in self._rows["rounds"]}
        for row in self._rows["metrics"]:
            value = row["value"]
            measured = math.nan if value is None else _typed(value, float, int)
            records[row["round"]].metrics[_typed(row["name"], str)] = measured
        for row in self._rows["selections"]:
            records[row["round"]].trainings.append(_training(row))
        for row in self._rows["flights"]:
            records[row["round"]].trainings[row["training"]].flown = _flown(row)
        for number, report in self._reports():
            records[number].reports.append(report)
        for row in self._rows["events"]:
            if row["round"] in records:
                _apply_event(records[row["round"]], row)
        return list(records.values())

    @readable()
    def ended(self) -> list[float]:
        """When each round ended, in seconds since 1970."""
        return [_typed(row["ended"], float, int) for row in self._rows["rounds"]]

    @readable()
    def costs(self) -> list[Costs]:
        return [Costs(*(_typed(row[name], float, int) for name in COST_COLUMNS)) for row in self._rows["ledger"]]

    @readable()
    def disclosed(self) -> list[dict[str, int]]:
        rows = [json.loads(row["disclosed"]) for row in self._rows["ledger"]]
        return [{kind: _typed(times, int) for kind, times in row.items()} for row in rows]

    def _reports(self) -> Iterator[tuple[int, Report]]:
        """One report per exchange: neighbouring rows that differ only in their signal."""
        place, values = None, dict[str, Vector]()
        for row in self._rows["reports"]:
            if (row["round"], row["exchange"]) != place:
                place, values = (row["round"], row["exchange"]), {}
                yield (
                    row["round"],
                    Report(row["exchange"], bool(row["trained"]), unpack_ids(row["clients"]), values),
                )
            values[row["signal"]] = unpack_values(row["values"])


def _bare_record(row: Any) -> RoundRecord:
    began, ended = (_typed(row[name], float, int) for name in ("virtual_began", "virtual_ended"))
    record = RoundRecord(row["round"], began=began, ended=ended)
    record.asks = [
        ([_typed(name, str) for name in names], _typed(asked, int), _typed(answered, int))
        for names, asked, answered in json.loads(row["asks"] or "[]")
    ]
    record.groups = [GroupAccuracy(*group) for group in json.loads(row["groups"] or "[]")]
    record.notes = _typed(json.loads(row["notes"] or "{}"), dict)
    if row["observed"] is not None:
        record.observed = Observed(**json.loads(row["observed"]))
    if row["client_accuracy"] is not None:
        record.client_accuracy = unpack_accuracies(row["client_accuracy"])
    return record


def _training(row: Any) -> TrainingRecord:
    left_out = [] if row["left_out"] is None else unpack_ids(row["left_out"]).tolist()
    return TrainingRecord(
        unpack_ids(row["clients"]).tolist(),
        unpack_weights(row["weights"]),
        left_out=left_out,
        filtered=_typed(json.loads(row["filtered"] or "{}"), dict),
    )


def _apply_event(record: RoundRecord, row: Any) -> None:
    match row["kind"]:
        case "rejected":
            record.trainings[row["training"]].rejected[_typed(row["client"], int)] = _typed(row["detail"], str)
        case "client failed":
            record.trainings[row["training"]].failed[_typed(row["client"], int)] = _typed(row["detail"], str)
        case "noted":
            record.events.append(_typed(row["detail"], str))
