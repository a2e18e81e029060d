"""What goes over the wire: an order or an answer is one small record and one array record of flat float32 vectors.

Both sides decode strictly: what is missing, of another type, shape or size is refused with a `WireError` that says
so. Arrays travel as plain .npy bytes; nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from muster.core.arrays import Floats, Ints, Vector
from muster.core.errors import MusterError
from muster.core.parameters import ParameterSpec
from muster.engine.task import ClientTask, Place
from muster.privacy.described import described, rebuilt
from muster.signals.base import LARGEST, Signal
from muster.updates.table import ANSWER_FIELDS, Updates

#: Raised with every change that an older node would misunderstand.
VERSION = 4

REGISTER, TRAIN, EVALUATE, SIGNALS = "query.register", "train", "evaluate", "query.signals"

#: Names of the two records in a message, and of the model among the arrays.
RECORD, ARRAYS, MODEL, BROADCAST = "muster", "arrays", "model", "broadcast"

#: Codes of error replies: the client refuses or failed; the client is not the one that was meant.
REFUSED, WRONG_NODE = 1000, 1001

#: Room for the header of an .npy file.
_HEADER = 1024
#: Longest text that is taken from a message, and that is passed on to people.
_LONGEST_TEXT, _LONGEST_SAID = 100_000, 300

T = TypeVar("T", int, float, str, bytes, bool)


class WireError(MusterError):
    """A message that cannot be understood, or must not be."""

    exit_code = 7


class WrongNode(WireError):
    """An order for another client."""


# --- fields ----------------------------------------------------------------------------------------------


def take(record: ConfigRecord, key: str, kind: type[T]) -> T:
    """A field of a record, of exactly this type."""
    value = record.get(key)
    if type(value) is not kind:
        raise WireError(f"the field '{key}' is {_short(value)}", expected=f"a value of type {kind.__name__}")
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise WireError(f"the field '{key}' has {len(value)} characters", expected=f"at most {_LONGEST_TEXT}")
    return value


def take_count(record: ConfigRecord, key: str, largest: int) -> int:
    """A field that counts something: 0 … largest."""
    value = take(record, key, int)
    if not 0 <= value <= largest:
        raise WireError(f"the field '{key}' is {value}", expected=f"0 to {largest}")
    return value


def take_numbers(record: ConfigRecord, key: str, count: int) -> Floats:
    """A field with `count` numbers in double precision."""
    content = take(record, key, bytes)
    if len(content) != 8 * count:
        raise WireError(f"the field '{key}' has {len(content)} bytes", expected=f"{count} numbers of 8 bytes")
    return np.frombuffer(content, dtype="<f8").astype(np.float64)


def printable(text: str) -> str:
    """Text from elsewhere, as it may be shown and recorded: short, and nothing that steers a terminal."""
    cut = text if len(text) <= _LONGEST_SAID else f"{text[: _LONGEST_SAID - 3]}..."
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def number_bytes(values: Floats) -> bytes:
    return np.ascontiguousarray(values, dtype="<f8").tobytes()


def record_of(content: RecordDict) -> ConfigRecord:
    """The message's record, if it is of this version."""
    record = content.config_records.get(RECORD)
    if record is None:
        raise WireError(f"the message has no record '{RECORD}'", expected="a message of Muster")
    version = take(record, "version", int)
    if version != VERSION:
        raise WireError(
            f"the message is of protocol version {version}",
            expected=f"version {VERSION}",
            fix="install the same version of Muster on server and nodes",
        )
    return record


# --- arrays ----------------------------------------------------------------------------------------------


def arrays_of(content: RecordDict, names: Sequence[str], size: int) -> dict[str, Vector]:
    """The message's flat float32 vectors: exactly these, each of `size` numbers."""
    record = content.array_records.get(ARRAYS)
    found = [] if record is None else list(record)
    if sorted(found) != sorted(names):
        raise WireError(f"the message holds the arrays {found}", expected=", ".join(names) or "no arrays")
    return {name: _vector(name, record[name], size) for name in names} if record is not None else {}


def _vector(name: str, array: Array, size: int) -> Vector:
    """The vector, if everything about it is as expected: judged before a byte of it is decoded."""
    if array.dtype != "float32" or tuple(array.shape) != (size,):
        raise WireError(
            f"the array '{name}' is {array.dtype} of shape {tuple(array.shape)}", expected=f"float32 of ({size},)"
        )
    if not 4 * size < len(array.data) <= 4 * size + _HEADER:
        raise WireError(f"the array '{name}' has {len(array.data)} bytes", expected=f"about {4 * size}")
    return decoded(name, array, (size,), np.float32).astype(np.float32, copy=False)


def decoded(
    name: str, array: Array, shape: tuple[int, ...], kind: type[np.generic] = np.number
) -> np.ndarray[Any, Any]:
    """An array's values, if its bytes are those of this shape and kind of number.

    The description beside the bytes may lie, and so may the header before them, which says how much memory the
    values take: it is compared before anything is made of it.
    """
    try:
        dtype, stated, start = _npy_header(array.data)
    except Exception as error:  # NumPy reads the header as Python text: it may hold anything
        raise _undecodable(name, error) from error
    if stated != shape or not np.issubdtype(dtype, kind):
        raise WireError(
            f"the array '{name}' turns out to be {dtype} of shape {_short(stated)}",
            expected=f"{kind.__name__} of {shape}",
        )
    wanted = start + dtype.itemsize * math.prod(shape)
    if len(array.data) != wanted:
        raise WireError(f"the array '{name}' has {len(array.data)} bytes", expected=str(wanted))
    try:
        return array.numpy()
    except Exception as error:
        raise _undecodable(name, error) from error


def _npy_header(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """What an .npy file says about itself, and where its values begin."""
    file = io.BytesIO(data[: 2 * _HEADER])
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"it is of version {version}")
    shape, _, dtype = read[version](file, max_header_size=_HEADER)
    return dtype, shape, file.tell()


def _undecodable(name: str, error: Exception) -> WireError:
    return WireError(f"the array '{name}' cannot be decoded ({_short(error)})", expected="plain .npy bytes")


def array_record(vectors: Mapping[str, Vector]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(vector)) for name, vector in vectors.items()})


def content(fields: Mapping[str, Any], arrays: ArrayRecord | None = None) -> RecordDict:
    """A message's content: the record with its version, and arrays if there are any."""
    records: dict[str, Any] = {RECORD: ConfigRecord({"version": VERSION, **fields})}
    if arrays is not None:
        records[ARRAYS] = arrays
    return RecordDict(records)


# --- signals ---------------------------------------------------------------------------------------------


def signals_to_text(asked: Sequence[Signal]) -> str:
    """Names and options, as JSON."""
    return json.dumps([described(signal) for signal in asked])


def signals_from_text(text: str, classes: int) -> tuple[Signal, ...]:
    """The signals that a server asks for, built from the registry: nothing else can be named."""
    try:
        return tuple(rebuilt(entry, classes) for entry in json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"the list of signals cannot be understood: {_short(text)} ({error!r})") from error
    except MusterError as error:
        raise WireError(f"the server asks for a signal that this client does not have: {error}") from error


# --- orders ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """A client's task as it goes to the client's node, apart from the vectors."""

    #: Fingerprint of the clients' side of the experiment.
    experiment: str
    #: The identity under which the node has registered.
    key: str
    #: Of one client.
    task: ClientTask
    #: Version of the client's state that the server counts on ("": none), and of its probed model.
    state: str = ""
    probe: str = ""
    #: Version of its state in the server's newest checkpoint, to which the server may have to go back.
    saved: str = ""
    #: Drawn for this one message; the answer repeats it.
    challenge: str = ""

    @property
    def client(self) -> int:
        return self.task.client

    @property
    def place(self) -> Place:
        return self.task.place

    def to_fields(self) -> dict[str, Any]:
        task, place = self.task, self.task.place
        return {
            "experiment": self.experiment,
            "client": task.client,
            "key": self.key,
            "round": place.round,
            "iteration": place.iteration,
            "exchange": place.exchange,
            "lr": task.lr,
            "signals": signals_to_text(task.signals),
            "state": self.state,
            "probe": self.probe,
            "saved": self.saved,
            "pull_factor": task.pull_factor,
            "challenge": self.challenge,
        }

    @classmethod
    def from_record(cls, record: ConfigRecord, verb: Literal["ask", "train"], classes: int) -> Order:
        lr = take(record, "lr", float)
        if not math.isfinite(lr) or lr < 0:
            raise WireError(f"the learning rate is {lr}", expected="a finite number, not negative")
        pull_factor = take(record, "pull_factor", float)
        if not math.isfinite(pull_factor) or pull_factor < 0:
            raise WireError(f"the field 'pull_factor' is {pull_factor}", expected="a finite number, not negative")
        round, iteration, exchange = (take_count(record, key, 2**31) for key in ("round", "iteration", "exchange"))
        task = ClientTask.of(
            verb,
            take_count(record, "client", 2**31),
            Place(round, iteration, exchange),
            lr=lr,
            signals=signals_from_text(take(record, "signals", str), classes),
            pull_factor=pull_factor,
        )
        return cls(
            experiment=take(record, "experiment", str),
            key=take(record, "key", str),
            task=task,
            state=take(record, "state", str),
            probe=take(record, "probe", str),
            saved=take(record, "saved", str),
            challenge=take(record, "challenge", str),
        )


def agreement(fingerprint: str, spec: ParameterSpec) -> str:
    """What server and nodes must have in common: what they describe, and what of the model does not travel."""
    return f"{fingerprint}-{spec.frozen[:16]}" if spec.frozen else fingerprint


def version_of(place: Place) -> str:
    """The name of a client's state after the exchange at this place."""
    return f"{place.round}.{place.iteration}.{place.exchange}"


# --- answers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Introduction:
    """How a node introduces itself."""

    #: "partition-id=3" or "name=clinic-a": from the node's own configuration.
    key: str
    #: Training and test samples.
    size: int
    tested: int

    def to_fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_content(cls, content: RecordDict) -> Introduction:
        record = record_of(content)
        size = take_count(record, "size", 2**40)
        if size == 0:
            raise WireError("the node has no training samples", expected="at least one")
        key = take(record, "key", str)
        if key != printable(key):
            raise WireError(
                f"the node's identity is {_short(key)}", expected=f"at most {_LONGEST_SAID} printable characters"
            )
        return cls(key, size, take_count(record, "tested", 2**40))


@dataclass(frozen=True)
class Measured:
    """Signals that a client measured, as one row of numbers."""

    values: dict[str, Floats]
    #: State or probed model that the server counts on was no longer there.
    lost: bool = False

    def to_fields(self) -> dict[str, Any]:
        rows = list(self.values.values())
        return {"values": number_bytes(np.concatenate(rows) if rows else np.empty(0)), "lost": self.lost}

    @classmethod
    def from_record(cls, record: ConfigRecord, widths: Mapping[str, int]) -> Measured:
        """`widths`: how many numbers each signal has, in the order in which they were asked for."""
        row = take_numbers(record, "values", sum(widths.values()))
        ends = np.cumsum([0, *widths.values()])
        values = {name: row[a:b] for name, a, b in zip(widths, ends[:-1], ends[1:], strict=True)}
        return cls(values, take(record, "lost", bool))


def numbers_to_fields(answer: Updates) -> dict[str, Any]:
    """What a client states about its training, apart from vectors and signals: the columns of `ANSWER_FIELDS`, and
    which filters of its own side changed the update, where it has any."""
    fields: dict[str, Any] = {name: answer.numbers[name][0].item() for name in ANSWER_FIELDS}
    return fields | ({"changed": [int(flag[0]) for flag in answer.changed.values()]} if answer.changed else {})


def numbers_from_record(record: ConfigRecord, most: Mapping[str, float]) -> dict[str, float]:
    """The same, if it is what an honest client can state: `most` says up to where."""
    return {name: _number(record, name, field.dtype, most[name]) for name, field in ANSWER_FIELDS.items()}


def changed_from_record(record: ConfigRecord, filters: Sequence[str]) -> dict[str, int]:
    """Which of these filters changed the update: 1 or 0 each."""
    if not filters:
        return {}
    flags = _counts(record, "changed", len(filters), 1)
    return dict(zip(filters, flags.tolist(), strict=True))


def _number(record: ConfigRecord, key: str, dtype: type[np.generic], largest: float) -> float:
    if issubclass(dtype, np.integer):
        return take_count(record, key, int(largest))
    value = take(record, key, float)
    if math.isfinite(value) and abs(value) > largest:
        raise WireError(f"the field '{key}' is {value:g}", expected=f"at most {largest:g}")
    return value


@dataclass(frozen=True)
class Scores:
    """A client's evaluation on its own test data: sums only."""

    confusion: Ints
    loss_sum: float
    #: classes × attribute values, flat, where the data has attributes.
    group_correct: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group_count: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Sums of an objective's rows, and by attribute value (flat), where it has any.
    totals: Floats = field(default_factory=lambda: np.zeros(0))
    group_totals: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def count(self) -> int:
        """How many samples stand behind it: the largest of its counts."""
        rows = round(self.totals[0]) if len(self.totals) else 0
        return max(int(self.confusion.sum()), int(self.group_count.sum()), rows)

    def counted_as(self, samples: int) -> Scores:
        """The same scores from fewer samples, up to the rounding of counts."""
        share = samples / self.count
        counts = (self.confusion, self.group_correct, self.group_count)
        confusion, correct, count = (np.rint(share * column).astype(np.int64) for column in counts)
        totals, group_totals = share * self.totals, share * self.group_totals
        return Scores(confusion, share * self.loss_sum, correct, count, totals, group_totals)

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "confusion": [int(n) for n in self.confusion.ravel()],
            "loss_sum": float(self.loss_sum),
            "group_correct": [int(n) for n in self.group_correct.ravel()],
            "group_count": [int(n) for n in self.group_count.ravel()],
        }
        if len(self.totals):
            fields["totals"] = [float(n) for n in self.totals]
            fields["group_totals"] = [float(n) for n in self.group_totals.ravel()]
        return fields

    @classmethod
    def from_record(
        cls, record: ConfigRecord, classes: int, groups: int, tested: int, *, width: int = 0, attributes: int = 0
    ) -> Scores:
        """`width`: how many numbers a row of the objective has, where it has any."""
        confusion = _counts(record, "confusion", classes * classes, tested).reshape(classes, classes)
        if confusion.sum() > tested:
            raise WireError(f"the client tested {confusion.sum()} samples", expected=f"at most {tested}")
        correct, count = (_counts(record, key, groups, tested) for key in ("group_correct", "group_count"))
        if (correct > count).any():
            raise WireError("a group has more correct samples than samples")
        if count.sum() > tested:
            raise WireError(f"the groups have {count.sum()} samples", expected=f"at most {tested}")
        # One client's word must not take the loss of all others, nor two words together.
        loss_sum, most = take(record, "loss_sum", float), LARGEST * tested
        if not abs(loss_sum) <= most:
            raise WireError(f"the field 'loss_sum' is {loss_sum:g}", expected=f"a number within ±{most:g}")
        answer = cls(confusion, loss_sum, correct, count)
        if not width:
            return answer
        totals = _numbers(record, "totals", width, most)
        of_groups = _numbers(record, "group_totals", attributes * width, most)
        if not 0 <= totals[0] <= tested:
            raise WireError(f"the client tested {totals[0]:g} samples", expected=f"at most {tested}")
        in_groups = of_groups.reshape(-1, width)[:, 0]
        if (in_groups < 0).any() or in_groups.sum() > tested:
            raise WireError(f"the groups have {in_groups.sum():g} samples", expected=f"at most {tested}")
        return replace(answer, totals=totals, group_totals=of_groups)


def _counts(record: ConfigRecord, key: str, count: int, most: int) -> Ints:
    """A field with `count` whole numbers, each 0 … most: compared before they become numbers of 64 bits."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != count or any(type(n) is not int or n < 0 for n in values):
        raise WireError(f"the field '{key}' is {_short(values)}", expected=f"{count} counts")
    if any(not isinstance(n, int) or n > most for n in values):
        raise WireError(f"the field '{key}' is {_short(values)}", expected=f"{count} counts of at most {most}")
    return np.array(values, dtype=np.int64)


def _numbers(record: ConfigRecord, key: str, count: int, most: float) -> Floats:
    values = record.get(key)
    if not isinstance(values, list) or len(values) != count or any(type(n) is not float for n in values):
        raise WireError(f"the field '{key}' is {_short(values)}", expected=f"{count} numbers")
    numbers = np.array(values, dtype=np.float64)
    if not (np.abs(numbers) <= most).all():
        raise WireError(f"the field '{key}' has values that are not within ±{most:g}")
    return numbers


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
