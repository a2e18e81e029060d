"""Runs in real time, with clients whose moments are scripted, and the same runs repeated from their record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.median import Median
from muster.core.errors import ConfigError, TrainingError
from muster.engine.base import AskOrder, Failed, TrainOrder
from muster.engine.live import Arrival, Live, LostAnswer
from muster.engine.task import Place
from muster.engine.trial import TrialEngine
from muster.pacing import Pacing, Synchronous
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.over_select import OverSelect
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.server.loop import Observer, Server
from muster.server.persistence import Persistence, Saved
from muster.server.record import RoundRecord
from muster.server.recorded_time import AsRecorded, RecordedClock
from muster.server.result import Result
from muster.signals.losses import Loss, TrainLoss
from muster.updates.table import Updates
from muster.updates.update_noise import UpdateNoise
from muster.world.availability.rhythm import Rhythm

CLIENTS, BROKEN, LEAVING, SILENT, ABSENT, POISONED = 10, 3, 5, 7, 8, 9
POLL = 0.25


class Workshop(Live):
    """Client k needs 1 + k seconds; two of them never come to an answer."""

    def __init__(self, engine: Elsewhere) -> None:
        self.engine, self.now = engine, 1000.0
        self.jobs: dict[tuple[Place, int], float] = {}
        self.unwanted: dict[tuple[Place, int], float] = {}
        self.orders: list[TrainOrder] = []

    def seconds(self) -> float:
        return self.now

    def pause(self) -> None:
        self.now += POLL

    def begin(self, order: TrainOrder) -> None:
        self.orders.append(order)
        for client in order.clients.tolist():
            self.jobs[order.place, client] = self.now + 1.0 + client

    def arrivals(self) -> list[Arrival]:
        ended = [who for who, moment in self.jobs.items() if moment <= self.now]
        problems = {BROKEN: LostAnswer("it is broken"), LEAVING: LostAnswer("it went away", gone=True)}
        for who in ended:
            del self.jobs[who]
        return [Arrival(place, client, problems.get(client)) for place, client in ended]

    def answers(self, orders: Any) -> Iterator[Updates | Failed]:
        for order in orders:
            TrialEngine.start(self.engine, order)
            yield from TrialEngine.collect(self.engine)

    def give_up(self, order: TrainOrder) -> None:
        for client in order.clients.tolist():
            if (moment := self.jobs.pop((order.place, client), None)) is not None:
                self.unwanted[order.place, client] = moment

    def too_late(self) -> list[tuple[Place, int]]:
        ended = [who for who, moment in self.unwanted.items() if moment <= self.now]
        for who in ended:
            del self.unwanted[who]
        return ended


class Elsewhere(TrialEngine):
    """Clients that are elsewhere: one is absent in round 2, one never answers questions, one sends nonsense."""

    def __init__(self, **options: Any) -> None:
        super().__init__(CLIENTS, sizes=np.arange(20, 20 + CLIENTS), **options)
        self.workshop = Workshop(self)

    @property
    def live(self) -> Live:
        return self.workshop

    def reachable(self, round: int) -> np.ndarray:
        everybody = np.arange(CLIENTS)
        return everybody[everybody != ABSENT] if round == 1 else everybody

    def start(self, order: TrainOrder) -> None:
        self.workshop.begin(order)

    def ask(self, order: AskOrder) -> Any:
        self.workshop.now += 0.5
        answering = order.clients[order.clients != SILENT]
        replies, _ = super().ask(replace(order, clients=answering))
        return replies, [Failed(SILENT, "silent")] if SILENT in order.clients else []

    def collect(self) -> Iterator[Updates | Failed]:
        raise AssertionError("answers in real time are taken where they have arrived")


class Poisoned(Elsewhere):
    """What one client sent cannot be computed again: it was not a number."""

    def _moved(self, clients: np.ndarray, round: int) -> np.ndarray:
        rows = super()._moved(clients, round)
        rows[clients == POISONED] = np.nan
        return rows


@dataclass
class Curious(Selector):
    """Asks everybody and trains some."""

    clients_per_round: int = 6

    def round(self, fed: View) -> Plan:
        yield Ask(fed.available, (Loss(),))
        yield Train(fed.sample(self.clients_per_round), (TrainLoss(),))


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def wants_stop(self) -> bool:
        self.rounds -= 1
        return self.rounds == 0


PACINGS = [
    Synchronous(),
    OverSelect(2.0),
    Deadline(seconds=4.6),
    Deadline(quantile=0.5),
    Deadline(seconds=4.6, late="use"),
    Buffered(in_flight=9, k=2, max_staleness=2),
]


def played(pacing: Pacing, rounds: int = 12, selector: Selector | None = None, **options: Any) -> Result:
    made = Server(selector or Curious(3 if pacing.fills else 6), FedAvg(), Elsewhere(), pacing=pacing, **options)
    return made.run(rounds)


def repeated(
    records: list[RoundRecord], pacing: Pacing, *, selector: Selector | None = None, **options: Any
) -> Result:
    clock = RecordedClock(records, None, None, 0)
    chosen = selector or Curious(3 if pacing.fills else 6)
    engine = TrialEngine(CLIENTS, sizes=np.arange(20, 20 + CLIENTS))
    server = Server(chosen, FedAvg(), engine, pacing=pacing, clock=clock, filters=(AsRecorded(clock),), **options)
    return server.run(len(records))


def facts(result: Result) -> list[Any]:
    return [
        [(t.clients, t.weights, t.failed, t.rejected, t.flown) for t in record.trainings]
        + [record.asks, record.began, record.ended]
        for record in result.records
    ]


@pytest.mark.parametrize("pacing", PACINGS, ids=repr)
def test_a_run_in_real_time_is_repeated_from_its_record(pacing):
    result = played(pacing)
    again = repeated(result.records, pacing)
    assert facts(again) == facts(result)
    assert again.parameters.tobytes() == result.parameters.tobytes()
    np.testing.assert_array_equal(again.history.durations, result.history.durations)
    np.testing.assert_array_equal(again.history.failures, result.history.failures)


def test_time_is_that_of_the_clock_since_the_run_began():
    result = played(Synchronous(), 1, RandomSelection(clients_per_round=CLIENTS))
    (record,) = result.records
    # The slowest client needs ten seconds, and is seen at the next look.
    assert record.began == pytest.approx(0.0, abs=1e-6)
    assert 10.0 <= record.ended <= 10.0 + 2 * POLL
    assert result.ledger.rounds[0].virtual_seconds == record.ended - record.began
    flown = record.trainings[0].flown
    needed = dict(zip(flown.clients, np.subtract(flown.ended, flown.started), strict=True))
    assert all(1 + client <= seconds <= 1 + client + 2 * POLL for client, seconds in needed.items())
    assert [client for client, _ in sorted(needed.items(), key=lambda pair: pair[1])] == list(range(CLIENTS))


def test_who_has_no_answer_is_recorded_with_the_reason_and_its_work_is_wasted():
    result = played(Synchronous(), 1, RandomSelection(clients_per_round=CLIENTS))
    (training,) = result.records[0].trainings
    assert training.failed == {BROKEN: "it is broken", LEAVING: "it went away"}
    outcomes = dict(zip(training.flown.clients, training.flown.outcome, strict=True))
    assert (outcomes.pop(BROKEN), outcomes.pop(LEAVING)) == ("failed", "left")
    assert set(outcomes.values()) == {"used"}
    costs = result.ledger.total()
    assert (costs.client_trainings, costs.wasted_trainings) == (8, 2)
    assert costs.wasted_seconds == pytest.approx((1 + BROKEN) + (1 + LEAVING), abs=4 * POLL)
    assert result.history.failures.tolist() == [int(c in (BROKEN, LEAVING)) for c in range(CLIENTS)]
    durations = result.history.durations
    assert np.flatnonzero(np.isnan(durations)).tolist() == [BROKEN, LEAVING]


def test_failures_are_told_to_those_who_listen():
    heard: list[Failed] = []

    class Listens(Observer):
        def answered(self, answers: Updates | Failed) -> None:
            heard.extend([answers] if isinstance(answers, Failed) else [])

    played(Synchronous(), 1, RandomSelection(clients_per_round=CLIENTS), observers=[Listens()])
    assert sorted(heard, key=lambda failed: failed.client) == [
        Failed(BROKEN, "it is broken"),
        Failed(LEAVING, "it went away"),
    ]


def test_who_was_there_and_who_was_silent_is_observed():
    records = played(Synchronous(), 3).records
    assert [record.observed.absent for record in records] == [[], [ABSENT], []]
    assert all(record.observed.silent == [[SILENT]] for record in records)
    # The round begins, the question is answered, the order is sent.
    assert all(len(record.observed.moments) == 3 for record in records)
    for record in records:
        assert record.observed.moments == sorted(record.observed.moments)
        assert record.asks == [(["loss"], CLIENTS - (record.round == 2), CLIENTS - 1 - (record.round == 2))]


def test_answers_that_come_too_late_are_booked_when_they_come():
    """The slow clients are given up on in round 1, and send their updates while round 2 goes on."""
    noise = UpdateNoise(norm=1.0, epsilon=1.0)

    class Noisy(Elsewhere):
        @property
        def filters(self) -> tuple[UpdateNoise, ...]:
            return (noise,)

    everybody, engine = RandomSelection(clients_per_round=CLIENTS), Noisy()
    result = Server(everybody, FedAvg(), engine, pacing=Deadline(seconds=6.6)).run(3)
    model = engine.population.spec.bytes
    first = result.ledger.rounds[0]
    # In time: 0, 1, 2, 4; without an answer: 3, 5; late: 6, 7, 8, 9.
    assert sorted(result.records[0].trainings[0].failed) == [3, 5, 6, 7, 8, 9]
    assert (first.client_trainings, first.wasted_trainings) == (4, 6)
    assert first.bytes_up == 4 * model
    assert first.wasted_bytes == 6 * model
    assert result.ledger.disclosed[0] == {"model update": 4}
    # The answers to round 1 have come by the beginning of round 3.
    late = [costs.bytes_up // model - 4 for costs in result.ledger.rounds]
    assert late[0] == 0
    assert sum(late) >= 4
    assert [told["model update"] - 4 for told in result.ledger.disclosed] == late
    unused = [costs.wasted_bytes // model - costs.wasted_trainings for costs in result.ledger.rounds]
    assert unused == late
    (spent,) = result.ledger.privacy.spent()
    assert spent.answers == 3


def test_a_late_clients_duration_is_at_least_as_long_as_the_server_waited():
    result = played(Deadline(seconds=4.6), 3, RandomSelection(clients_per_round=CLIENTS))
    history = result.history
    assert np.flatnonzero(history.given_up).tolist() == [4, 5, 6, 7, 8, 9]
    assert history.durations[9] == pytest.approx(4.6, abs=1e-6)
    reasons = result.records[0].trainings[0].failed
    assert reasons[9] == "late: given up on after 4.6 s"


class Kept(Persistence):
    """Keeps the last state in memory."""

    def __init__(self, saved: Saved | None = None) -> None:
        self.saved, self.rounds = saved, []

    def load(self) -> Saved | None:
        return self.saved

    def round_ended(self, record: RoundRecord, costs: Any, disclosed: Any, state: Any, stage: str) -> None:
        self.rounds.append((record, costs, disclosed))
        records, costs, told = (list(column) for column in zip(*self.rounds, strict=True))
        self.saved = Saved(records=records, costs=costs, disclosed=told, state=state())


def test_after_a_restart_those_under_way_are_told_once_more():
    pacing, kept = Buffered(in_flight=9, k=2), Kept()
    selector = RandomSelection(clients_per_round=3)
    Server(selector, FedAvg(), Elsewhere(), pacing=pacing, observers=[StopAfter(2)]).run(6, kept)
    under_way = sorted(kept.saved.state["time"]["airspace"]["flights"]["clients"].tolist())
    assert len(under_way) >= 3
    engine = Elsewhere()
    engine.workshop.now = 5e6  # it was away for long
    server = Server(selector, FedAvg(), engine, pacing=pacing)
    result = server.run(4, Kept(kept.saved))
    third = result.records[2]
    assert [event for event in third.events if "once more" in event] == [
        f"client {client} was told to train once more: the server had been away" for client in under_way
    ]
    assert not any("once more" in event for event in result.records[3].events)
    assert third.began == pytest.approx(kept.saved.records[-1].ended, abs=2 * POLL), "time went on where it was"
    # The model was sent once more, too.
    sent = sum(len(order.clients) for order in engine.workshop.orders)
    assert sum(c.bytes_down for c in result.ledger.rounds[2:]) == sent * engine.population.spec.bytes


# --- what cannot be repeated --------------------------------------------------------------------------------


def test_what_was_refused_is_refused_again_although_it_can_be_computed_now():
    everybody = RandomSelection(clients_per_round=CLIENTS)
    for aggregator in (FedAvg(), Median()):
        result = Server(everybody, aggregator, Poisoned()).run(2)
        assert all(list(record.trainings[0].rejected) == [POISONED] for record in result.records)
        again = repeated(result.records, Synchronous(), selector=everybody)
        assert again.records[0].trainings[0].rejected == {POISONED: "non-finite values"}
    assert facts(again)[0][-2:] == facts(result)[0][-2:]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.observed.silent.clear(), "round 2 cannot be repeated: the run asks a question"),
        (
            lambda r: r.observed.moments.pop(),
            "round 2 cannot be repeated: the run continues where the record ends",
        ),
        (lambda r: r.trainings[0].flown.started.__setitem__(0, -1.0), r"the run tells client \d+ to train at"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(spoil, message):
    records = played(Synchronous(), 3).records
    spoil(records[1])
    with pytest.raises(TrainingError, match=message):
        repeated(records, Synchronous())


def test_waiting_for_those_who_never_answered_is_no_repetition():
    """The record is of a run with a deadline: without one, the late would be waited for, and never come."""
    records = played(Deadline(seconds=4.6), 2).records
    with pytest.raises(TrainingError, match="waits for clients that never answered"):
        repeated(records, Synchronous())


# --- what does not fit --------------------------------------------------------------------------------------


def test_simulated_sessions_make_no_sense_in_real_time():
    server = Server(RandomSelection(3), FedAvg(), Elsewhere(), availability=Rhythm())
    with pytest.raises(ConfigError, match="these clients work in real time"):
        server.check(3)
