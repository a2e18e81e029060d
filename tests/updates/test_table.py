"""The update table: rows, parts, and a number that is declared once and arrives everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from muster.core.errors import TrainingError
from muster.server.loop import Observer
from muster.training.base import LocalTraining
from muster.training.scaffold import Scaffold
from muster.updates import table
from muster.updates.table import ANSWER_FIELDS, AnswerField, Updates, normalised


def some(count: int = 4, first: int = 0) -> Updates:
    clients = np.arange(first, first + count)
    movements = np.arange(count * 3).reshape(count, 3)
    return Updates.from_movements(
        movements,
        clients=clients[::-1],
        sizes=10 + clients,
        steps=clients,
        reports={"loss": clients[:, None] / 2},
        extra={"control": -movements.astype(np.float32)},
    )


def test_rows_are_taken_from_every_column():
    taken = some().rows(np.array([2, 0]))
    assert taken.clients.tolist() == [1, 3]
    assert taken.movements.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert taken.extra["control"].tolist() == [[-6, -7, -8], [0, -1, -2]]
    assert taken.report("loss").tolist() == [1, 0]
    assert taken.steps.tolist() == [2, 0]


def test_parts_together_are_the_whole():
    whole = some(5)
    parts = [whole.rows(slice(0, 2)), whole.rows(slice(2, 3)), whole.rows(slice(3, 5))]
    again = Updates.concatenated(parts)
    for name in ("clients", "sizes", "movements", "multiplicity", "lr", "version", "arrived"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    assert again.by_client().clients.tolist() == [0, 1, 2, 3, 4]
    assert len(Updates.concatenated([])) == 0


def test_single_rows_are_views():
    whole = some()
    for row in whole:
        row.movements[:] = 7
    assert (whole.movements == 7).all()


def test_shares():
    drawn = Updates.from_movements(np.zeros((2, 1)), sizes=np.array([1, 3]), multiplicity=np.array([2, 1]))
    assert drawn.shares("samples").tolist() == [0.4, 0.6]
    assert drawn.shares("equal").tolist() == pytest.approx([2 / 3, 1 / 3])
    wanted = Updates.from_movements(np.zeros((2, 1)), weights=np.zeros(2))
    with pytest.raises(TrainingError, match="zero"):
        wanted.shares("equal")


class Seen(Observer):
    """Keeps what clients state."""

    def __init__(self) -> None:
        self.stated: dict[int, float] = {}

    def answered(self, answers) -> None:
        self.stated |= dict(zip(answers.clients.tolist(), answers.numbers["mean_loss"].tolist(), strict=True))


@pytest.mark.parametrize("engine", ["inline", "processes", "vectorised"])
def test_a_new_number_is_declared_once(monkeypatch, tiny, engine):
    """One line: the mean training loss, which clients know anyway, arrives in the server's table."""
    from muster.experiment.parts import build_parts

    field = AnswerField(np.float64, lambda training, algorithm, size: 1e6)
    monkeypatch.setitem(table.ANSWER_FIELDS, "mean_loss", field)
    seen = Seen()
    made = tiny(engine={"kind": engine}, rounds=1)
    parts = build_parts(made, workers=1 if engine == "processes" else 0)
    with parts.engine:
        parts.server([seen]).run(1)
    assert len(seen.stated) == 5
    assert all(0 < loss < 10 or engine == "vectorised" for loss in seen.stated.values())


@pytest.mark.flower
def test_a_new_number_goes_over_the_wire(monkeypatch):
    from flwr.app import ConfigRecord

    from muster.flower import wire

    monkeypatch.setitem(table.ANSWER_FIELDS, "mean_loss", AnswerField(np.float64, lambda *_: 1e6))
    stated = {"steps": 5, "samples": 50, "credited_steps": 0, "mean_loss": 0.25}
    sent = Updates.of(3, 50, np.zeros(2, dtype=np.float32), stated)
    record = ConfigRecord(wire.numbers_to_fields(sent))
    assert wire.numbers_from_record(record, dict.fromkeys(stated, 100.0)) == stated
    with pytest.raises(wire.WireError, match="mean_loss"):
        wire.numbers_from_record(record, dict.fromkeys(stated, 100.0) | {"mean_loss": 0.1})


def test_what_the_server_knows_is_found_by_client():
    known = Updates.from_movements(
        np.zeros((4, 0)), clients=np.array([0, 1, 2, 3]), staleness=np.array([5, 6, 7, 8]), weights=np.arange(4.0)
    )
    sent = some().rows(np.array([0, 2]))  # of the clients 3 and 1
    whole = sent.completed(known, sizes=np.array([30, 10]), reports=["loss"])
    assert whole.staleness.tolist() == [8, 6]
    assert whole.weights.tolist() == [3.0, 1.0]
    assert whole.sizes.tolist() == [30, 10]
    assert list(whole.reports) == ["loss"]
    assert whole.movements is sent.movements
    # The table that was sent is as it was.
    assert sent.weights is None
    assert sent.staleness.tolist() == [0, 0]
    assert sent.completed(known, sizes=sent.sizes, reports=[]).reports == {}


def test_default_columns_are_shared_and_nobody_can_write_into_them():
    first, second = some(), some(first=4)
    assert first.staleness is second.staleness
    with pytest.raises(ValueError, match="read-only"):
        first.staleness[0] = 1
    own = Updates.from_movements(np.zeros((3, 1)), staleness=np.array([2]))
    assert own.staleness.tolist() == [2, 2, 2]


def test_a_table_of_movements_alone_has_one_sample_and_one_step_a_client():
    made = Updates.from_movements([[1, 2], [3, 4]])
    assert made.clients.tolist() == [0, 1]
    assert (made.sizes.tolist(), made.steps.tolist(), made.numbers["samples"].tolist()) == ([1, 1], [1, 1], [0, 0])
    assert made.movements.dtype == np.float32
    assert np.isnan(made.lr).all()
    assert (made.multiplicity.tolist(), made.staleness.tolist(), made.version.tolist()) == ([1, 1], [0, 0], [0, 0])
    assert (made.lr_factors.tolist(), made.arrived.tolist(), made.weights) == ([1.0, 1.0], [0.0, 0.0], None)
    assert Updates.from_movements([[1, 2]], lr=0.5).lr.tolist() == [0.5]


def test_steps_of_a_probe_are_part_of_the_movement():
    stated = {"steps": 5, "samples": 50, "credited_steps": 2}
    one = Updates.of(3, 50, np.zeros(2, dtype=np.float32), stated, reports={"loss": np.array([0.5])})
    assert one.steps.tolist() == [7]
    assert one.report("loss").tolist() == [0.5]
    assert (one.clients.tolist(), one.sizes.tolist(), one.movements.shape) == ([3], [50], (1, 2))
    assert {name: column.dtype for name, column in one.numbers.items()} == dict.fromkeys(stated, np.int64)


def test_nobody_can_state_more_work_than_was_ordered():
    training = LocalTraining(epochs=2, batch_size=16)
    most = {name: f.most(training, Scaffold(option="I"), 40) for name, f in ANSWER_FIELDS.items()}
    assert most == {"steps": 6, "samples": 2 * 40 + 40, "credited_steps": 6}


def test_a_discount_and_a_cap_come_after_the_weights():
    table = Updates.from_movements(np.zeros((3, 1)), sizes=np.array([1, 1, 2]))
    assert table.shares("samples", discount=np.array([1.0, 1.0, 0.0])).tolist() == [0.5, 0.5, 0.0]
    assert table.shares("samples", most=0.4).tolist() == pytest.approx([0.3, 0.3, 0.4])
    wanted = Updates.from_movements(np.zeros((2, 1)), weights=np.array([3.0, 1.0]), multiplicity=np.array([1, 3]))
    assert wanted.shares("samples").tolist() == [0.5, 0.5]
    assert wanted.shares("equal").tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.0, 0.0], "of all updates are zero"),
        ([np.inf, 1.0], "sum to inf"),
        ([np.nan, 1.0], "sum to nan"),
        ([-2.0, 1.0], "sum to -1"),
    ],
)
def test_weights_that_cannot_be_divided_by_are_an_error(weights, message):
    with pytest.raises(TrainingError, match=message):
        normalised(np.array(weights))
    np.testing.assert_allclose(normalised(np.array([1e-300, 3e-300])), [0.25, 0.75])


def late() -> Updates:
    """Two answers to the current model, two to one that lies 10 back, one to one that lies 100 back."""
    return Updates.from_movements(
        np.arange(10).reshape(5, 2),
        version=np.array([7, 5, 7, 2, 5]),
        staleness=np.array([0, 2, 0, 5, 2]),
        drifts={5: np.full(2, 10, dtype=np.float32), 2: np.array([100, 200], dtype=np.float32)},
    )


def test_models_of_late_clients_as_seen_from_the_current_one():
    both = slice(0, 2)
    drifts, which = late().drift_rows(both)
    assert drifts.tolist() == [[100, 200], [10, 10]]
    assert which.tolist() == [-1, 1, -1, 0, 1]
    expected = [[0, 1], [12, 13], [4, 5], [106, 207], [18, 19]]
    assert late().seen_from_current(both).tolist() == expected
    assert late().seen_from_current(slice(1, 2)).tolist() == [row[1:] for row in expected]
    table = late()
    table.seen_from_current(both)
    assert table.movements.tolist() == late().movements.tolist(), "what was sent stays as it was"


def test_without_late_answers_nothing_is_copied():
    table = late().rows(np.array([0, 2]))
    assert np.shares_memory(table.seen_from_current(slice(0, 2)), table.movements)


def test_drifts_stay_with_their_versions_when_tables_are_joined_and_cut():
    parts = [late().rows(slice(0, 2)), late().rows(slice(2, 5))]
    again = Updates.concatenated(parts)
    assert set(again.drifts) == {2, 5}
    np.testing.assert_array_equal(again.seen_from_current(slice(0, 2)), late().seen_from_current(slice(0, 2)))
    weighted = [Updates.from_movements([[1, 2]], weights=np.array([w])) for w in (1.0, 3.0)]
    assert Updates.concatenated(weighted).weights.tolist() == [1.0, 3.0]
    assert Updates.concatenated(weighted).rows(np.array([1])).weights.tolist() == [3.0]


def test_a_table_in_order_is_not_copied_and_numbers_go_without_vectors():
    table = Updates.from_movements([[1, 2], [3, 4]], extra={"control": np.ones((2, 2), dtype=np.float32)})
    assert table.by_client() is table
    numbers = table.without_vectors()
    assert (numbers.movements.shape, numbers.extra) == ((2, 0), {})
    assert numbers.clients.tolist() == [0, 1]
    assert table.movements.shape == (2, 2)
    assert [row.clients.tolist() for row in table] == [[0], [1]]
