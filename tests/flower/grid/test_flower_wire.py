"""Messages: what is sent arrives, and what is wrong is refused with words."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.task import ClientTask, Place
from muster.flower import wire
from muster.flower.wire import Introduction, Measured, Order, Scores, WireError
from muster.privacy.noise import Private, private
from muster.signals.base import signals


def order(**changes: Any) -> Order:
    values: dict[str, Any] = {"verb": "ask", "client": 3, "place": Place(1, 2, 5), "lr": 0.1}
    named = {name: changes.pop(name) for name in ("signals", "pull_factor") if name in changes}
    return Order(experiment="abc", key="partition-id=3", task=ClientTask.of(**(values | named)), **changes)


def sent(fields: dict, arrays: ArrayRecord | None = None) -> RecordDict:
    return wire.content(fields, arrays)


@pytest.mark.parametrize("name", signals.names())
def test_every_signal_travels(name):
    signal = signals.get(name)()
    (back,) = wire.signals_from_text(wire.signals_to_text((signal,)), classes=10)
    assert back == signal


def test_options_of_signals_travel():
    asked = (
        signals.build("probe_norm", {"batches": 3, "credit": "epoch"}),
        signals.build("heterogeneity_triplet", {"recipe": {"biased_steps": 7}}),
    )
    assert wire.signals_from_text(wire.signals_to_text(asked), classes=10) == asked


def test_noise_travels_but_its_bound_is_the_clients_own():
    noisy = private(signals.build("label_entropy", {}), "laplace", 0.5, 1e-5, classes=10)
    (back,) = wire.signals_from_text(wire.signals_to_text((noisy,)), classes=10)
    assert back == noisy
    (other,) = wire.signals_from_text(wire.signals_to_text((noisy,)), classes=100)
    assert isinstance(other, Private)
    assert other.bound.high > noisy.bound.high


def test_orders_travel():
    given_order = order(signals=(signals.build("loss", {}),), state="1.0.0", probe="1.2.4", pull_factor=0.5)
    record = wire.record_of(sent(given_order.to_fields()))
    back = Order.from_record(record, "ask", 10)
    assert back.to_fields() == given_order.to_fields()
    assert back.task.signals == given_order.task.signals


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lr": float("nan")}, "learning rate"),
        ({"lr": -1.0}, "learning rate"),
        ({"lr": 1}, "'lr' is 1"),
        ({"pull_factor": float("inf")}, "'pull_factor' is inf"),
        ({"pull_factor": -0.5}, "'pull_factor' is -0.5"),
        ({"pull_factor": "1"}, "'pull_factor' is '1'"),
        ({"round": -1}, "'round' is -1"),
        ({"round": "1"}, "'round'"),
        ({"client": True}, "'client' is True"),
        ({"key": 3}, "'key' is 3"),
        ({"key": "x" * 200_000}, "200000 characters"),
        ({"signals": "[{"}, "list of signals"),
        ({"signals": "3"}, "list of signals"),
        ({"signals": '[{"name": "os.system", "options": {}}]'}, "does not have"),
        ({"signals": '[{"name": "loss", "options": {"depth": 3}}]'}, "does not have"),
        ({"version": 99}, "version 99"),
    ],
)
def test_bad_orders_are_refused(changes, why):
    with pytest.raises(WireError, match=why):
        Order.from_record(wire.record_of(sent({**order().to_fields(), **changes})), "ask", 10)


def test_a_missing_field_is_named():
    fields = order().to_fields()
    del fields["state"]
    with pytest.raises(WireError, match="'state' is None"):
        Order.from_record(wire.record_of(sent(fields)), "ask", 10)


def test_messages_of_others_are_refused():
    with pytest.raises(WireError, match="no record 'muster'"):
        wire.record_of(RecordDict({"config": ConfigRecord({"version": 2})}))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(width=64), min_size=3, max_size=3))
def test_numbers_travel_to_the_bit(numbers):
    values = {"loss": np.array(numbers[:1]), "bias_update": np.array(numbers[1:])}
    record = wire.record_of(sent(Measured(values, lost=True).to_fields()))
    back = Measured.from_record(record, {"loss": 1, "bias_update": 2})
    assert back.lost
    for name, row in values.items():
        assert back.values[name].tobytes() == row.tobytes()
    with pytest.raises(WireError, match="24 bytes"):
        Measured.from_record(record, {"loss": 1})


def test_vectors_travel_to_the_bit():
    vector = np.array([1.5, -0.0, np.nan, np.inf, 1e-45], dtype=np.float32)
    content = sent({}, wire.array_record({"model": vector}))
    assert wire.arrays_of(content, ["model"], 5)["model"].tobytes() == vector.tobytes()
    assert wire.arrays_of(sent({}), [], 5) == {}


def npy(values: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, **options)
    return buffer.getvalue()


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("an array was unpickled",)


PICKLED = npy(np.array([Bomb()] * 5, dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (Array(np.zeros(4, np.float32)), r"shape \(4,\)"),
        (Array(np.zeros((5, 1), np.float32)), r"shape \(5, 1\)"),
        (Array(np.zeros(5, np.float64)), "float64"),
        (Array(np.zeros(5, np.int32)), "int32"),
        (Array("float32", (5,), "numpy.ndarray", npy(np.zeros(10**6, np.float32))), "bytes"),
        (Array("float32", (5,), "numpy.ndarray", npy(np.zeros(4, np.float32))), "turns out"),
        (Array("float32", (5,), "numpy.ndarray", npy(np.zeros(5, np.int32))), "turns out"),
        (Array("float32", (5,), "numpy.ndarray", b"x" * 200), "cannot be decoded"),
        (Array("float32", (5,), "numpy.ndarray", b""), "0 bytes"),
        (Array("float32", (5,), "numpy.ndarray", PICKLED), "turns out to be object|bytes"),
        (Array("float32", (5,), "numpy.ndarray", pickle.dumps([Bomb()]) + b" " * 60), "cannot be decoded"),
        (Array("float32", (5,), "torch.Tensor", npy(np.zeros(5, np.float32))), "cannot be decoded"),
    ],
)
def test_bad_arrays_are_refused_and_never_unpickled(array, why):
    with pytest.raises(WireError, match=why):
        wire.arrays_of(sent({}, ArrayRecord({"model": array})), ["model"], 5)


def with_header(text: str, size: int = 5) -> Array:
    """A float32 vector as it is described, with this text as the header of its bytes."""
    padded = text.encode("latin1").ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(4 * size)
    return Array("float32", (size,), "numpy.ndarray", data)


HOSTILE_HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (70368744177664,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2**99,), }",
    f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**40},), }}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-5,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (5,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (5,",
    "(" + 3 * chr(39),
    "(" * 110,
]


@pytest.mark.parametrize("header", HOSTILE_HEADERS)
def test_a_header_that_lies_is_refused_before_it_is_believed(header, monkeypatch):
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the bytes were loaded"))
    with pytest.raises(WireError, match=r"cannot be decoded|turns out"):
        wire.arrays_of(sent({}, ArrayRecord({"model": with_header(header)})), ["model"], 5)
    with pytest.raises(WireError, match=r"cannot be decoded|turns out"):
        wire.decoded("model", with_header(header), (5,))


def test_bytes_behind_the_values_are_refused():
    array = Array("float32", (5,), "numpy.ndarray", npy(np.zeros(5, np.float32)) + b"more")
    with pytest.raises(WireError, match="152 bytes"):
        wire.arrays_of(sent({}, ArrayRecord({"model": array})), ["model"], 5)


def test_arrays_that_nobody_asked_for_are_refused():
    content = sent({}, wire.array_record({"model": np.zeros(5, np.float32), "more": np.zeros(5, np.float32)}))
    with pytest.raises(WireError, match="'more'"):
        wire.arrays_of(content, ["model"], 5)
    with pytest.raises(WireError, match=r"arrays \[\]"):
        wire.arrays_of(sent({}), ["model"], 5)


@pytest.mark.parametrize(
    "fields", [{"steps": 11}, {"samples": 101}, {"credited_steps": 11}, {"steps": -1}, {"steps": 1.0}]
)
def test_more_work_than_possible_is_refused(fields):
    honest = {"steps": 10, "samples": 100, "credited_steps": 0}
    most = {"steps": 10, "samples": 100, "credited_steps": 10}
    assert wire.numbers_from_record(wire.record_of(sent(honest)), most) == honest
    with pytest.raises(WireError):
        wire.numbers_from_record(wire.record_of(sent({**honest, **fields})), most)


def test_evaluations_travel_and_are_checked():
    tested = Scores(np.array([[3, 1], [0, 4]]), 2.5, np.array([1, 2]), np.array([2, 2]))
    record = wire.record_of(sent(tested.to_fields()))
    back = Scores.from_record(record, classes=2, groups=2, tested=8)
    assert np.array_equal(back.confusion, tested.confusion)
    assert back.loss_sum == 2.5
    with pytest.raises(WireError, match="at most 7"):
        Scores.from_record(record, classes=2, groups=2, tested=7)
    with pytest.raises(WireError, match="9 counts"):
        Scores.from_record(record, classes=3, groups=2, tested=8)
    wrong = tested.to_fields() | {"group_correct": [3, 0]}
    with pytest.raises(WireError, match="more correct"):
        Scores.from_record(wire.record_of(sent(wrong)), classes=2, groups=2, tested=8)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"confusion": [2**63, 0, 0, 0]}, "at most 8"),
        ({"confusion": [2**63 - 1, 2**63 - 1, 2, 0]}, "at most 8"),  # together 0 in 64 bits
        ({"group_count": [9, 0]}, "at most 8"),
        ({"group_count": [5, 5]}, "groups have 10 samples"),
        ({"loss_sum": float("nan")}, "'loss_sum' is nan"),
        ({"loss_sum": float("inf")}, "'loss_sum' is inf"),
        ({"loss_sum": 1e308}, "'loss_sum' is 1e+308"),  # two of them would be infinite
        ({"loss_sum": -1e308}, "'loss_sum' is -1e+308"),
    ],
)
def test_evaluations_that_nobody_can_have_made_are_refused(wrong, why):
    tested = Scores(np.array([[3, 1], [0, 4]]), 2.5, np.array([1, 2]), np.array([2, 2]))
    record = wire.record_of(sent(tested.to_fields() | wrong))
    with pytest.raises(WireError) as refused:
        Scores.from_record(record, classes=2, groups=2, tested=8)
    assert why in str(refused.value)


def test_evaluations_that_count_less_keep_their_rates():
    tested = Scores(
        np.array([[30, 10], [0, 40]]),
        25.0,
        np.array([10, 20]),
        np.array([20, 60]),
        np.array([80.0, 8]),
        np.ones(4),
    )
    assert tested.count == 80
    less = tested.counted_as(8)
    assert less.confusion.tolist() == [[3, 1], [0, 4]]
    assert (less.loss_sum, less.group_correct.tolist(), less.group_count.tolist()) == (2.5, [1, 2], [2, 6])
    np.testing.assert_allclose([*less.totals, *less.group_totals], [8, 0.8, *[0.1] * 4])


@pytest.mark.parametrize("counts", [{"confusion": 90}, {"groups": 90}, {"rows": 90}])
def test_no_count_of_an_evaluation_escapes(counts):
    """Whichever is the largest is what is bounded."""
    confusion, groups, rows = (counts.get(name, 1) for name in ("confusion", "groups", "rows"))
    tested = Scores(np.array([[confusion]]), 0.0, np.zeros(1), np.array([groups]), np.array([float(rows)]))
    assert tested.count == 90


@pytest.mark.parametrize("in_groups", [[-1.0, 0.0, 1.0, 0.0], [8.0, 0.0, 1.0, 0.0]])
def test_groups_of_rows_hold_no_more_than_was_tested(in_groups):
    tested = Scores(
        np.zeros((0, 0), dtype=np.int64), 2.5, totals=np.array([8.0, 1.0]), group_totals=np.array(in_groups)
    )
    record = wire.record_of(sent(tested.to_fields()))
    with pytest.raises(WireError, match="the groups have"):
        Scores.from_record(record, classes=0, groups=0, tested=8, width=2, attributes=2)


def test_flags_are_zeros_and_ones():
    assert wire.changed_from_record(ConfigRecord({"changed": [1, 0]}), ["a", "b"]) == {"a": 1, "b": 0}
    for flag in (2, 2**63):
        with pytest.raises(WireError, match="'changed'"):
            wire.changed_from_record(ConfigRecord({"changed": [flag, 0]}), ["a", "b"])


@pytest.mark.parametrize("key", ["name=" + "x" * 1000, "name=\x1b[2J", "name=a\nb", "name=\ud800"])
def test_identities_that_cannot_be_shown_are_refused(key):
    with pytest.raises(WireError, match="identity is"):
        Introduction.from_content(sent(Introduction(key, 5, 2).to_fields()))


def test_what_others_say_is_cut_and_made_printable():
    assert wire.printable("ein Grund [/x]") == "ein Grund [/x]"
    assert wire.printable("\x1b[31mred\nline\ud800") == " [31mred line "
    assert len(wire.printable("x" * 10**6)) == 300


def test_introductions_travel_and_are_checked():
    assert Introduction.from_content(sent(Introduction("name=a", 5, 2).to_fields())) == Introduction(
        "name=a", 5, 2
    )
    with pytest.raises(WireError, match="no training samples"):
        Introduction.from_content(sent(Introduction("name=a", 0, 2).to_fields()))
