"""The update table: rows, parts, and a number that is declared once and arrives everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from muster.core.errors import TrainingError
from muster.server.loop import Observer
from muster.updates import table
from muster.updates.table import AnswerField, Updates


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
