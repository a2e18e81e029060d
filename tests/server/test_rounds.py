"""A round from the inside: what is recorded, remembered and told, on clients that are only numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fltrust import FLTrust
from muster.aggregation.median import Median
from muster.aggregation.scaffold import Scaffold as ScaffoldServer
from muster.core.component import Population
from muster.core.errors import CheckpointError, ConfigError, TrainingError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.base import AskOrder, Evaluation, Failed, HeldBack, TrainOrder
from muster.engine.trial import TrialEngine
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.privacy.account import Privacy
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.fedcbs import FedCBS
from muster.selection.random import RandomSelection
from muster.server import loop
from muster.server.loop import Observer, Server
from muster.server.persistence import Persistence, Saved
from muster.signals.base import Replies
from muster.signals.gradients import MeanGradient
from muster.signals.losses import Loss, TrainLoss
from muster.signals.probe import ProbeNorm
from muster.signals.updates import BiasUpdate
from muster.training.base import LocalTraining
from muster.training.scaffold import Scaffold
from muster.updates.clip import Clip
from muster.updates.filters import Filter, Filtered
from muster.updates.guard import Guard
from muster.updates.table import Updates
from muster.world.devices.base import Devices

CLIENTS = 6
#: Rounds for which a selector is tried before round 1, where answers may be late.
TRIAL = 40


@dataclass
class Follows(Selector):
    """Does what the test says."""

    plan: Callable[[View], Plan]

    def round(self, fed: View) -> Plan:
        return self.plan(fed)


def server(plan: Callable[[View], Plan], engine: TrialEngine | None = None, **options: Any) -> Server:
    return Server(Follows(plan), options.pop("aggregator", FedAvg()), engine or TrialEngine(CLIENTS), **options)


def everybody(fed: View) -> Plan:
    yield Train(fed.available)


def devices(*seconds: float) -> Devices:
    """Clients of 20 samples that need this long for them."""
    return Devices(20 / np.array(seconds), np.full(len(seconds), 1e15), np.full(len(seconds), 1e15))


def timed(*seconds: float, **options: Any) -> tuple[TrialEngine, dict[str, Any]]:
    return TrialEngine(len(seconds), sizes=np.full(len(seconds), 20)), {"devices": devices(*seconds), **options}


# --- what is recorded -------------------------------------------------------------------------------------


def test_reports_say_in_which_exchange_they_were_made():
    def plan(fed: View) -> Plan:
        yield Ask(np.array([0, 1, 2]), (Loss(),))
        yield Train(np.array([3, 4]), (TrainLoss(),))
        yield Ask(np.array([5]), (Loss(),))

    first, second, third = server(plan).run(1).records[0].reports
    assert [report.exchange for report in (first, second, third)] == [0, 1, 2]
    assert [report.trained for report in (first, second, third)] == [False, True, False]
    assert [report.clients.tolist() for report in (first, second, third)] == [[0, 1, 2], [3, 4], [5]]
    assert list(second.values) == ["train_loss"]
    assert second.values["train_loss"].dtype == np.float32


@pytest.mark.parametrize(("classes", "kept"), [(15, True), (16, True), (17, False)])
def test_wide_reports_are_not_recorded(classes, kept):
    def plan(fed: View) -> Plan:
        replies = yield Train(fed.available, (BiasUpdate(),))
        assert replies["bias_update"].shape == (CLIENTS, classes)

    (record,) = server(plan, TrialEngine(CLIENTS, classes=classes)).run(1).records
    assert bool(record.reports) == kept


def test_every_exchange_has_its_place():
    orders: list[Any] = []

    class Notes(TrialEngine):
        def ask(self, order: AskOrder) -> Any:
            orders.append(order)
            return super().ask(order)

        def start(self, order: TrainOrder) -> None:
            orders.append(order)
            super().start(order)

    def plan(fed: View) -> Plan:
        yield Ask(fed.available, (Loss(),))
        yield Train(fed.available)
        yield Train(fed.available)

    server(plan, Notes(CLIENTS)).run(2)
    places = [(o.place.round, o.place.iteration, o.place.exchange, o.place.rounds) for o in orders]
    assert places == [(0, 0, 0, 2), (0, 0, 1, 2), (0, 1, 2, 2), (1, 0, 0, 2), (1, 0, 1, 2), (1, 1, 2, 2)]


def test_notes_and_events_stay_in_the_record():
    class Eventful(TrialEngine):
        def take_events(self) -> list[str]:
            return ["something happened"]

    def plan(fed: View) -> Plan:
        fed.notes["order"] = np.array([2, 1])
        yield Train(fed.available)

    (record,) = server(plan, Eventful(CLIENTS)).run(1).records
    assert record.notes == {"order": [2, 1]}
    assert record.events == ["something happened"]


def test_what_two_filters_did_is_in_the_record():
    sent = server(everybody, filters=(Clip(1e-3), Clip(1e6))).run(1).records[0].trainings[0].filtered
    assert sent == {"clip": {"seen": CLIENTS, "changed": CLIENTS, "refused": 0}}


# --- silence and lies -------------------------------------------------------------------------------------


class Silent(TrialEngine):
    """Clients 1 and 4 do not answer questions, client 3 answers nonsense."""

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        replies, _ = super().ask(replace(order, clients=order.clients[~np.isin(order.clients, [1, 4])]))
        replies["loss"][replies.clients == 3] = np.nan
        return replies, [Failed(client, "silent") for client in (1, 4)]


def test_who_does_not_answer_or_is_not_believed_has_failed_once():
    seen: list[list[int]] = []

    def plan(fed: View) -> Plan:
        replies = yield Ask(fed.available, (Loss(),))
        seen.append(replies.clients.tolist())
        yield Train(replies.clients)

    made = server(plan, Silent(CLIENTS))
    result = made.run(2)
    assert seen == [[0, 2, 5], [0, 2, 5]]
    assert result.history.failures.tolist() == [0, 2, 0, 2, 2, 0]
    assert result.records[0].asks == [(["loss"], 6, 3)]
    # The model went to all, four have measured and told, whether or not they are believed.
    model = made.engine.population.spec.bytes
    sizes = made.engine.population.sizes
    assert result.ledger.rounds[0].bytes_down == model * (6 + 3)
    assert result.ledger.rounds[0].bytes_up == model * 3 + 4 * 4
    assert result.ledger.rounds[0].probe_samples == sizes[[0, 2, 3, 5]].sum()
    assert result.ledger.disclosed[0][Loss.discloses] == 4


# --- time -------------------------------------------------------------------------------------------------


def test_a_question_takes_as_long_as_its_slowest_client_and_one_to_nobody_no_time():
    def plan(fed: View) -> Plan:
        yield Ask(np.array([], dtype=np.int64), (Loss(),))
        yield Ask(np.array([0, 2]), (Loss(),))
        yield Train(np.array([1]))

    engine, options = timed(1.0, 2.0, 4.0)
    (record,) = server(plan, engine, **options).run(1).records
    assert record.ended == pytest.approx(4.0 + 2.0)
    (flown,) = [training.flown for training in record.trainings]
    assert (flown.started, flown.ended) == (pytest.approx([4.0]), pytest.approx([6.0]))


def test_a_question_to_nobody_leaves_the_clock_alone():
    def plan(fed: View) -> Plan:
        yield Ask(np.array([], dtype=np.int64), (Loss(),))

    engine, options = timed(1.0, 2.0)
    assert [record.ended for record in server(plan, engine, **options).run(2).records] == [0.0, 0.0]


def test_what_became_of_every_training_is_told():
    """One is refused, one left out, one has no weight, one fails, one is late; the others are used."""

    class Troubled(TrialEngine):
        def collect(self) -> Iterator[Updates | Failed]:
            for part in super().collect():
                part.movements[part.clients == 1] = np.nan
                yield part.rows(part.clients != 4)
                yield Failed(4, "it crashed")

    def plan(fed: View) -> Plan:
        weights = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
        yield Train(np.arange(7), weights=weights, keep=lambda replies: replies.clients != 2)

    engine = Troubled(7, sizes=np.full(7, 20))
    made = server(plan, engine, devices=devices(1, 2, 3, 4, 5, 6, 100), pacing=Deadline(seconds=10.0))
    result = made.run(1)
    (training,) = result.records[0].trainings
    outcomes = dict(zip(training.flown.clients, training.flown.outcome, strict=True))
    assert outcomes == {0: "used", 1: "refused", 2: "left out", 3: "left out", 4: "failed", 5: "used", 6: "late"}
    assert training.left_out == [2]
    assert training.clients == [0, 3, 5]
    assert training.failed == {4: "it crashed", 6: "late: given up on after 10 of 100 s"}
    assert training.flown.ended == pytest.approx([1, 2, 3, 4, 5, 6, 10])
    assert result.history.trainings.tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert result.history.failures.tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert result.history.given_up.tolist() == [False] * 6 + [True]
    np.testing.assert_allclose(result.history.durations, [1, 2, 3, 4, 5, 6, 10])
    costs = result.ledger.total()
    assert (costs.wasted_trainings, costs.wasted_seconds) == (1, pytest.approx(10.0))
    # Five have sent their updates, one of them in vain.
    assert costs.client_trainings == 5


def test_without_devices_no_time_passes_and_nobody_flies():
    (record,) = server(everybody).run(1).records
    assert (record.began, record.ended, record.trainings[0].flown.clients) == (0.0, 0.0, [])


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("late", "give clients more time"), (None, "lower the learning rate")],
)
def test_a_run_that_stops_says_what_to_do(reason, advice):
    engine, options = timed(5.0, 5.0, 5.0, pacing=Deadline(seconds=1.0 if reason else 10.0))
    chain = () if reason else (Clip(1.0), Refuses())
    with pytest.raises(TrainingError, match=rf"2 rounds in a row had no valid update(.|\n)*{advice}"):
        server(everybody, engine, **options, filters=chain, guard=Guard(max_failed_rounds=2)).run(9)


@dataclass(frozen=True)
class Refuses(Filter):
    """Refuses everybody."""

    def apply(self, updates: Updates, spec: Any, draws: Any) -> Filtered:
        return Filtered(updates.rows(slice(0, 0)), dict.fromkeys(updates.clients.tolist(), "not today"))


@pytest.mark.parametrize("limit", [1, 3])
def test_a_run_stops_after_exactly_so_many_failed_rounds_in_a_row(limit):
    made = server(everybody, filters=(Refuses(),), guard=Guard(max_failed_rounds=limit))
    with pytest.raises(TrainingError, match=f"{limit} rounds in a row"):
        made.run(9)
    assert made.done == limit


def test_rounds_that_fail_now_and_then_do_not_stop_a_run():
    def plan(fed: View) -> Plan:
        clients = fed.available if fed.round % 3 == 2 else fed.available[:0]
        yield Train(clients, report=(TrainLoss(),))

    assert len(server(plan, guard=Guard(max_failed_rounds=3)).run(9).records) == 9


def test_nobody_was_selected():
    def plan(fed: View) -> Plan:
        yield from ()

    with pytest.raises(TrainingError, match="client None: no client was selected"):
        server(plan, guard=Guard(max_failed_rounds=2)).run(5)


# --- measuring --------------------------------------------------------------------------------------------


class Evaluated(TrialEngine):
    """Every client has two test samples; the loss falls from round to round."""

    losses: tuple[float, ...] = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
    kept: float | None = None

    def evaluate(self, parameters: Any) -> Evaluation:
        clients = self.population.clients
        count = np.full(clients, 2)
        loss, self.losses = self.losses[0], self.losses[1:]
        validation = None if self.kept is None else HeldBack(1, self.kept * loss, 1)
        confusion = np.array([[clients, 0], [clients, 0]])
        return Evaluation(
            confusion, loss * 2 * clients, count // 2, np.zeros(clients), count, validation=validation
        )


@pytest.mark.parametrize("many", [CLIENTS - 1, CLIENTS, CLIENTS + 1])
def test_large_federations_keep_every_clients_accuracy_for_the_last_round_only(monkeypatch, many):
    monkeypatch.setattr(loop, "MANY_CLIENTS", many)
    records = server(everybody, Evaluated(CLIENTS)).run(3).records
    has = [record.client_accuracy is not None for record in records]
    assert has == [many >= CLIENTS, many >= CLIENTS, True]
    assert records[-1].client_accuracy.tolist() == [0.5] * CLIENTS


def test_schedules_follow_the_losses_that_were_measured_on_validation_data_where_there_are_any():
    plain = server(everybody, Evaluated(CLIENTS), evaluate_every=2)
    plain.run(5)
    assert list(plain.losses) == [8.0, 4.0, 2.0]
    kept = Evaluated(CLIENTS)
    kept.kept = 10.0
    held = server(everybody, kept)
    held.run(3)
    assert list(held.losses) == [80.0, 40.0, 20.0]


def test_a_round_that_is_not_evaluated_has_no_metrics():
    records = server(everybody, Evaluated(CLIENTS), evaluate_every=3).run(4).records
    assert [math.isnan(record.metrics["loss"]) for record in records] == [True, True, False, False]
    assert [record.client_accuracy is None for record in records] == [True, True, False, False]
    assert set(records[0].metrics) == {"accuracy", "loss"}


def test_participants_are_those_of_all_trainings_of_the_round():
    class Differing(Evaluated):
        def evaluate(self, parameters: Any) -> Evaluation:
            return replace(super().evaluate(parameters), client_correct=np.array([0, 1, 2, 0, 1, 2]))

    def plan(fed: View) -> Plan:
        yield Train(np.array([1, 2]))
        yield Train(np.array([2, 3]))

    (row,) = server(plan, Differing(CLIENTS)).run(1).metrics
    assert row["participant_accuracy"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert row["last_iteration_accuracy"] == pytest.approx((1.0 + 0.0) / 2)


# --- observers --------------------------------------------------------------------------------------------


def test_observers_are_told_what_happens_in_order():
    heard: list[Any] = []

    class Listens(Observer):
        def started(self, server: Server, rounds: int, done: int) -> None:
            heard.append(("started", rounds, done))

        def requested(self, request: Any, round: int) -> None:
            heard.append((type(request).__name__, round))

        def answered(self, answers: Any) -> None:
            heard.append(("answered", len(answers.clients)))

        def round_ended(self, record: Any, ledger: Any) -> None:
            heard.append(("ended", record.round))

    def plan(fed: View) -> Plan:
        yield Ask(fed.available, (Loss(),))
        yield Train(fed.available)

    made = server(plan, observers=[Listens(), Observer()])
    made.run(1)
    assert heard == [("started", 1, 0), ("Ask", 0), ("Train", 0), ("answered", CLIENTS), ("ended", 1)]
    made.run(2)
    assert heard[5:] == [("started", 2, 1), ("Ask", 1), ("Train", 1), ("answered", CLIENTS), ("ended", 2)]


def test_one_observer_who_wants_to_stop_is_enough():
    class Stop(Observer):
        def wants_stop(self) -> bool:
            return True

    result = server(everybody, observers=[Observer(), Stop(), Observer()]).run(5)
    assert (len(result.records), result.complete) == (1, False)
    assert server(everybody, observers=[Observer()]).run(2).complete
    assert not Observer().wants_stop()


def test_refused_and_failing_clients_are_logged_with_the_number_of_the_round(caplog):
    class Crashing(TrialEngine):
        def collect(self) -> Iterator[Updates | Failed]:
            for part in super().collect():
                part.movements[part.clients == 1] = np.nan
                yield part.rows(part.clients != 2)
                yield Failed(2, "it crashed")

    with caplog.at_level(logging.WARNING, logger="muster"):
        server(everybody, Crashing(CLIENTS)).run(1)
    assert "round 1: client 1 refused: non-finite values" in caplog.text
    assert "round 1: client 2 failed: it crashed" in caplog.text


# --- models and methods -----------------------------------------------------------------------------------


def test_a_method_with_two_halves_sends_twice_as_much():
    made = server(everybody, TrialEngine(CLIENTS, algorithm=Scaffold()), aggregator=ScaffoldServer())
    costs, model = made.run(1).ledger.total(), made.engine.population.spec.bytes
    assert (costs.bytes_down, costs.bytes_up) == (2 * model * CLIENTS, 2 * model * CLIENTS)


def test_a_training_with_plain_fedavg_leaves_the_aggregator_alone_and_keeps_the_cap():
    sizes = np.array([1, 1, 1, 1, 1, 995])

    def plan(fed: View) -> Plan:
        yield Train(fed.available, fedavg=True)

    engine = TrialEngine(CLIENTS, sizes=sizes)
    weights = server(plan, engine, aggregator=Median()).run(1).records[0].trainings[0].weights
    np.testing.assert_allclose(weights, sizes / sizes.sum())
    capped = server(plan, engine, aggregator=FedAvg(max_weight=0.5)).run(1).records[0].trainings[0].weights
    np.testing.assert_allclose(capped, [0.1] * 5 + [0.5])


def test_learning_rates_follow_the_schedule_round_by_round():
    rates: list[float] = []

    class Notes(TrialEngine):
        def start(self, order: TrainOrder) -> None:
            rates.append(order.lr)
            super().start(order)

    training = LocalTraining(lr=0.8, schedule="exponential", decay=0.5)
    server(everybody, Notes(CLIENTS, training=training)).run(3)
    assert rates == pytest.approx([0.8, 0.4, 0.2])


def test_weights_of_some_answers_and_none_of_others_cannot_be_mixed():
    def plan(fed: View) -> Plan:
        chosen = fed.available[:2]
        yield Train(chosen, weights=np.ones(2) if fed.round == 0 and 0 in chosen else None)

    engine, options = timed(1.0, 9.0, 8.0, 8.5, 9.5, 9.9, pacing=Buffered(in_flight=4, k=3))
    with pytest.raises(TrainingError, match="some of the answers come with weights"):
        server(plan, engine, **options).run(3)


def test_a_signal_that_is_wanted_twice_is_reported_once():
    orders: list[TrainOrder] = []

    class Notes(TrialEngine):
        def start(self, order: TrainOrder) -> None:
            orders.append(order)
            super().start(order)

    def plan(fed: View) -> Plan:
        yield Train(fed.available, (TrainLoss(), TrainLoss(), MeanGradient()))

    server(plan, Notes(CLIENTS)).run(1)
    assert [signal.name for signal in orders[0].report] == ["train_loss", "mean_gradient"]


def test_a_method_that_needs_the_servers_own_data_is_refused_where_there_is_none():
    class Rootless(TrialEngine):
        def check_root(self) -> None:
            raise ConfigError("the server has none")

    server(everybody, aggregator=FLTrust()).check(1)
    server(everybody, Rootless(CLIENTS)).check(1)
    with pytest.raises(ConfigError, match="the server has none"):
        server(everybody, Rootless(CLIENTS), aggregator=FLTrust()).check(1)


def test_noise_that_covers_nothing_is_mentioned():
    privacy = Privacy(epsilon=1.0)
    bare = Server(RandomSelection(3), FedAvg(), TrialEngine(CLIENTS), privacy=privacy)
    assert any("[privacy] protects nothing here" in text for text in bare.cautions(5))
    covered = Server(FedCBS(3), FedAvg(), TrialEngine(CLIENTS), privacy=privacy)
    assert not any("protects nothing" in text for text in covered.cautions(5))
    assert not any("protects" in t for t in Server(RandomSelection(3), FedAvg(), TrialEngine(CLIENTS)).cautions(5))


def test_running_statistics_of_late_answers_are_estimates_of_today():
    """Two clients that started together and answer one after the other do not move them twice as far."""
    spec = ParameterSpec((SpecEntry("w", (2,), 0, 2),), (SpecEntry("mean", (1,), 2, 3),))
    movements = np.tile([1.0, 1.0, 5.0], (2, 1))
    engine = TrialEngine(2, sizes=np.full(2, 20), spec=spec, movements=movements, classes=2, attributes=None)
    made = Server(RandomSelection(2), FedAvg(), engine, devices=devices(1.0, 2.0), pacing=Buffered(2, k=1))
    result = made.run(2)
    np.testing.assert_allclose(result.parameters, [2.0, 2.0, 5.0])


# --- who is there -----------------------------------------------------------------------------------------


def test_who_cannot_be_reached_or_is_at_work_is_not_available():
    class Partly(TrialEngine):
        def reachable(self, round: int) -> np.ndarray:
            return np.array([0, 2, 3, 5])

    seen: list[list[int]] = []

    def plan(fed: View) -> Plan:
        seen.append(fed.available.tolist())
        yield Train(fed.available[:1])

    engine = Partly(CLIENTS, sizes=np.full(CLIENTS, 20))
    server(plan, engine, devices=devices(1, 1, 5, 9, 1, 9), pacing=Buffered(in_flight=3, k=1)).run(2)
    # Three cohorts of one set out; the first has answered when round 2 begins.
    assert seen[TRIAL:] == [[0, 2, 3, 5], [2, 3, 5], [3, 5], [0, 5]]


def test_each_cohort_of_a_round_draws_from_a_generator_of_its_own():
    drawn: list[float] = []

    def plan(fed: View) -> Plan:
        drawn.append(fed.rng.random())
        yield Train(fed.available[:1])

    engine, options = timed(*[5.0] * 6, pacing=Buffered(in_flight=3, k=1))
    server(plan, engine, **options).run(2)
    assert len(set(drawn[TRIAL:])) == len(drawn[TRIAL:]) == 4


def test_newcomers_are_known_from_the_round_in_which_they_join():
    class Growing(TrialEngine):
        def begin_round(self, round: int) -> None:
            sizes = np.full(3 + round, 30)
            self._population = replace(self._population, sizes=sizes)

    seen: list[tuple[int, int]] = []

    def plan(fed: View) -> Plan:
        seen.append((fed.clients, fed.history.clients))
        yield Train(fed.available)

    result = server(plan, Growing(3)).run(3)
    assert seen == [(3, 3), (4, 4), (5, 5)]
    assert result.history.trainings.tolist() == [3, 3, 3, 2, 1]


def test_probes_spare_samples_of_one_training_only():
    """A client that was probed trains for a shorter time, and the next time as long as ever."""

    def plan(fed: View) -> Plan:
        yield Ask(np.array([0]), (ProbeNorm(),))
        yield Train(np.array([0, 1]))
        yield Train(np.array([0]))

    engine = TrialEngine(2, sizes=np.full(2, 64), training=LocalTraining(batch_size=16))
    world = Devices(np.full(2, 16.0), np.full(2, 1e15), np.full(2, 1e15))
    (record,) = server(plan, engine, devices=world).run(1).records
    first, second = (
        dict(zip(t.flown.clients, np.subtract(t.flown.ended, t.flown.started), strict=True))
        for t in record.trainings
    )
    # 64 samples take four seconds; two mini-batches of 16 are done with the probe.
    assert first == pytest.approx({0: 2.0, 1: 4.0})
    assert second == pytest.approx({0: 4.0})


# --- checkpoints ------------------------------------------------------------------------------------------


class Remembers(Persistence):
    """Keeps the last state, and the stages of the run."""

    def __init__(self, saved: Saved | None = None) -> None:
        self.saved, self.stages = saved, []
        self._columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])

    def load(self) -> Saved | None:
        return self.saved

    def round_ended(self, record: Any, costs: Any, disclosed: Any, state: Any, stage: str) -> None:
        self.stages.append(stage)
        for column, value in zip(self._columns, (record, costs, disclosed), strict=True):
            column.append(value)
        records, spent, told = (list(column) for column in self._columns)
        self.saved = Saved(records=records, costs=spent, disclosed=told, state=state())


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def wants_stop(self) -> bool:
        self.rounds -= 1
        return self.rounds == 0


def test_a_store_is_told_whether_the_run_goes_on():
    kept = Remembers()
    server(everybody).run(3, kept)
    assert kept.stages == ["running", "running", "complete"]
    kept = Remembers()
    server(everybody, observers=[StopAfter(2)]).run(3, kept)
    assert kept.stages == ["running", "stopped"]
    kept = Remembers()
    with pytest.raises(TrainingError):
        server(everybody, filters=(Refuses(),), guard=Guard(max_failed_rounds=2)).run(2, kept)
    assert kept.stages == ["running", "running"], "it has failed in its last round, and is not complete"


def test_a_run_that_failed_fails_again_when_it_is_resumed():
    kept, guard = Remembers(), Guard(max_failed_rounds=2)
    with pytest.raises(TrainingError, match="not today"):
        server(everybody, filters=(Refuses(),), guard=guard).run(2, kept)
    with pytest.raises(TrainingError, match="not today"):
        server(everybody, filters=(Refuses(),), guard=guard).run(2, Remembers(kept.saved))


def spoilt(kept: Remembers, **changes: Any) -> Remembers:
    state = {**kept.saved.state, **changes}
    return Remembers(replace(kept.saved, state=state))


def test_a_checkpoint_of_another_model_is_refused():
    kept = Remembers()
    server(everybody, observers=[StopAfter(1)]).run(3, kept)
    server(everybody).run(3, spoilt(kept))
    short = kept.saved.state["parameters"][:-1]
    with pytest.raises(CheckpointError, match=r"does not fit.*a model of shape \(30,\)"):
        server(everybody).run(3, spoilt(kept, parameters=short))
    frozen = {**kept.saved.state["spec"], "frozen": "another"}
    with pytest.raises(CheckpointError, match="the frozen parts of the model are not those"):
        server(everybody).run(3, spoilt(kept, spec=frozen))


def test_a_checkpoint_from_before_there_was_a_clock_can_be_continued():
    kept = Remembers()
    server(everybody, observers=[StopAfter(1)]).run(3, kept)
    old = {name: value for name, value in kept.saved.state.items() if name not in ("time", "filters", "spec")}
    whole = server(everybody).run(3)
    rest = server(everybody).run(3, Remembers(replace(kept.saved, state=old)))
    assert np.array_equal(rest.parameters, whole.parameters)
    assert [len(record.trainings) for record in rest.records] == [1, 1, 1]


def test_methods_are_checked_with_the_number_of_planned_rounds():
    seen: list[tuple[int, bool]] = []

    class Checks(RandomSelection):
        def check(self, population: Population) -> None:
            seen.append((population.rounds, population.timed_availability))
            super().check(population)

    Server(Checks(2), FedAvg(), TrialEngine(CLIENTS)).check(17)
    assert seen == [(17, True)]
