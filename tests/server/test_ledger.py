"""The ledger: what an exchange costs and discloses, from the books alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from muster.core.component import Population
from muster.engine.trial import small_spec
from muster.privacy.account import Privacy
from muster.server.ledger import Bookkeeper, Costs, Ledger, Load
from muster.signals.base import Signal
from muster.signals.labels import LabelHistogram
from muster.signals.losses import BatchLoss, Loss, TrainLoss
from muster.signals.probe import ProbeNorm
from muster.signals.start_loss import StartLoss
from muster.signals.updates import FinalLayerNorm
from muster.training.base import LocalTraining
from muster.training.scaffold import Scaffold
from muster.updates.clip import Clip
from muster.updates.filters import Filter
from muster.updates.update_noise import UpdateNoise

SIZES = np.array([10, 40, 40, 100])
CLASSES, NUMBER = 4, 4
SPEC = small_spec(CLASSES)
MODEL = SPEC.bytes


@pytest.fixture
def books() -> Bookkeeper:
    return books_of()


def books_of(training: LocalTraining | None = None) -> Bookkeeper:
    ledger = Ledger()
    ledger.open_round()
    return Bookkeeper(ledger, Population(SIZES, CLASSES, SPEC, 10), training or LocalTraining(batch_size=16))


def ids(*clients: int) -> np.ndarray:
    return np.array(clients, dtype=np.int64)


@dataclass(frozen=True)
class Packed(Filter):
    """Sends a quarter of the bytes, and tells something of its own."""

    discloses: ClassVar[str] = "how well it packs"

    def sent_bytes(self, before, spec):
        return before // 4

    def apply(self, updates, spec, draws):
        raise AssertionError


# --- questions ---------------------------------------------------------------------------------------------------


def test_a_question_about_the_model_costs_a_download_and_one_about_the_data_does_not(books):
    assert books.question((Loss(),)) == Load(MODEL, NUMBER)
    assert books.question((LabelHistogram(),)) == Load(0, CLASSES * NUMBER)
    assert books.question((LabelHistogram(), Loss())) == Load(MODEL, (CLASSES + 1) * NUMBER)


def test_everybody_who_was_asked_got_the_model_and_who_answered_sent_numbers(books):
    books.asked(ids(0, 1, 3), ids(0, 3), (Loss(), LabelHistogram()))
    costs = books.ledger.current
    assert costs == Costs(bytes_down=3 * MODEL, bytes_up=2 * (CLASSES + 1) * NUMBER, probe_samples=110)
    assert books.ledger.disclosed == [{Loss.discloses: 2, LabelHistogram.discloses: 2}]


def test_signals_that_run_all_samples_through_the_model_share_the_pass(books):
    everybody = np.arange(4)
    assert books.passes(everybody, ()).tolist() == [0, 0, 0, 0]
    assert books.passes(everybody, (LabelHistogram(),)).tolist() == [0, 0, 0, 0]
    assert books.passes(everybody, (Loss(),)).tolist() == SIZES.tolist()
    assert books.passes(everybody, (Loss(), Loss())).tolist() == SIZES.tolist()
    # A probe trains, and so does not share: on two mini-batches of 16.
    assert books.passes(everybody, (Loss(), ProbeNorm())).tolist() == [20, 72, 72, 132]
    assert books.passes(everybody, (BatchLoss(), BatchLoss(batch=8))).tolist() == [18, 24, 24, 24]


def test_what_a_probe_has_done_need_not_be_trained_again(books):
    assert books.spared(ids(0, 3), (ProbeNorm(),)).tolist() == [10, 32]
    assert books.spared(ids(0, 3), (ProbeNorm(), Loss())).tolist() == [10, 32]
    assert books.spared(ids(3), ()).tolist() == [0]


def test_plans_count_the_samples_of_every_epoch_and_what_the_algorithm_adds():
    two = books_of(LocalTraining(epochs=2))
    assert two.planned(np.arange(4), Scaffold()).tolist() == [20, 80, 80, 200]
    assert two.planned(np.arange(4), Scaffold(option="I")).tolist() == [30, 120, 120, 300]


# --- trainings ---------------------------------------------------------------------------------------------------


def test_what_a_training_sends_and_receives(books):
    assert books.update((), 1, 1) == Load(MODEL, MODEL)
    assert books.update((), 2, 3) == Load(2 * MODEL, 3 * MODEL)
    # What the server can compute from the update costs nothing; the rest is sent.
    assert books.update((FinalLayerNorm(), TrainLoss()), 1, 1) == Load(MODEL, MODEL + NUMBER)


def test_a_filter_on_the_client_packs_the_movement_and_nothing_else(books):
    assert books.update((TrainLoss(),), 1, 2, (Packed(),)) == Load(MODEL, MODEL // 4 + MODEL + NUMBER)
    assert books.update((), 1, 1, (Packed(), Packed())) == Load(MODEL, MODEL // 4 // 4)


def test_where_the_data_is_in_one_place_no_model_travels():
    central = books_of(LocalTraining(mode="centralised"))
    assert central.update((TrainLoss(),), 1, 1) == Load(0, 0)
    central.told(4, ())
    assert central.ledger.disclosed == [{"training data": 4}]


def test_answers_are_booked_with_what_they_tell(books):
    report = (StartLoss(), FinalLayerNorm(), TrainLoss())
    books.dispatched(ids(0, 1, 3), Load(7, 5))
    books.arrived(
        ids(0, 3), Load(7, 5), samples=110, steps=8, report=report, filters=(Packed(), UpdateNoise(1.0, 1.0))
    )
    costs = books.ledger.current
    assert (costs.bytes_down, costs.bytes_up) == (21, 10)
    assert (costs.client_trainings, costs.samples, costs.local_steps) == (2, 110, 8)
    told = {"model update": 2, "how well it packs": 2}
    for signal in (StartLoss(), TrainLoss()):
        told[signal.discloses] = told.get(signal.discloses, 0) + 2
    assert books.ledger.disclosed == [told]
    assert books.ledger.current.probe_samples == int(books.passes(ids(0, 3), (StartLoss(), TrainLoss())).sum())


@pytest.mark.parametrize("answered", [False, True])
def test_a_wasted_training_has_cost_its_download_and_its_answer_if_there_was_one(books, answered):
    books.wasted(3, Load(100, 10), 12.5, answered=answered)
    costs = books.ledger.current
    assert (costs.wasted_trainings, costs.wasted_seconds) == (3, 12.5)
    assert costs.wasted_bytes == (330 if answered else 300)
    assert costs.bytes_up == (30 if answered else 0)
    assert costs.client_trainings == 0


def test_an_answer_that_comes_too_late_has_travelled_and_told_all_the_same(books):
    noise = UpdateNoise(norm=1.0, epsilon=2.0)
    books.too_late(3, Load(100, 10), (TrainLoss(),), (noise,))
    costs = books.ledger.current
    assert costs == Costs(bytes_up=10, wasted_bytes=10)
    assert books.ledger.disclosed == [{"model update": 1, TrainLoss.discloses: 1}]
    (spent,) = books.ledger.privacy.spent()
    assert (spent.answers, spent.epsilon) == (1, 2.0)


def test_only_what_has_noise_is_spent(books):
    covered: tuple[Signal, ...] = Privacy(epsilon=0.5).protect((LabelHistogram(), Loss()), CLASSES)
    books.released(ids(1, 2), covered, (Clip(1.0),))
    books.released(ids(2), covered)
    assert [(spent.signal, spent.answers) for spent in books.ledger.privacy.spent()] == [("label_histogram", 2)]


# --- sums --------------------------------------------------------------------------------------------------------


def test_sums_stay_when_rounds_are_forgotten():
    ledger = Ledger()
    for number in range(1, 5):
        ledger.open_round()
        ledger.current.samples = number
        ledger.disclose("a", number)
        ledger.disclose("b", int(number == 2))
    assert ledger.disclosed == [{"a": 1}, {"a": 2, "b": 1}, {"a": 3}, {"a": 4}]
    for count, left in ((1, 3), (0, 3), (2, 1)):
        ledger.forget(count)
        assert (len(ledger.rounds), len(ledger.disclosed)) == (left, left)
        assert ledger.total().samples == 10
        assert ledger.total_disclosed() == {"a": 10, "b": 1}
    assert ledger.current.samples == 4


def test_every_kind_of_cost_is_added():
    names = [field.name for field in fields(Costs)]
    one, two = (Costs(**{name: factor * rank for rank, name in enumerate(names, 1)}) for factor in (1, 100))
    assert one + two == Costs(**{name: 101 * rank for rank, name in enumerate(names, 1)})


def test_a_ledger_comes_back_as_it_was(books):
    books.asked(ids(0), ids(0), (Loss(),))
    books.released(ids(0), (), (UpdateNoise(1.0, 1.0),))
    again = Ledger()
    again.load_state_dict(books.ledger.state_dict())
    assert again.rounds == books.ledger.rounds
    assert again.disclosed == books.ledger.disclosed
    assert again.privacy.spent() == books.ledger.privacy.spent()
    # The copy is one: what is booked later in one of them is not in the other.
    again.disclose("more", 1)
    assert "more" not in books.ledger.disclosed[-1]
