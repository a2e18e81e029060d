"""The server with time: against a slow simulation of events, against the synchronous server, in bad weather."""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.simprox import SimProx
from muster.core.component import state
from muster.core.errors import ConfigError, TrainingError
from muster.engine.trial import TrialEngine
from muster.engine.wrapped import WrappedEngine
from muster.experiment import run
from muster.pacing import Pacing
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.over_select import OverSelect
from muster.pacing.synchronous import Synchronous
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.server import Observer, Server
from muster.signals.losses import SquaredLoss
from muster.signals.probe import ProbeNorm
from muster.world.devices.base import Devices

CLIENTS = 30


@dataclass
class InTurn(Selector):
    """The next clients in turn who are idle: simple enough to be played by hand."""

    clients_per_round: int = 3
    turn: int = state(lambda: 0)

    def round(self, fed: View) -> Plan:
        chosen: list[int] = []
        idle = set(fed.available.tolist())
        while len(chosen) < self.clients_per_round:
            if self.turn % fed.clients in idle - set(chosen):
                chosen.append(self.turn % fed.clients)
            self.turn += 1
        yield Train(np.sort(chosen))


def devices(seed: int = 3, equal: bool = False) -> Devices:
    speed = np.full(CLIENTS, 20.0) if equal else np.random.default_rng(seed).lognormal(3, 1.0, CLIENTS)
    return Devices(speed, np.full(CLIENTS, 1e12), np.full(CLIENTS, 1e12))


def trial(equal: bool = False) -> TrialEngine:
    return TrialEngine(CLIENTS, sizes=np.full(CLIENTS, 40) if equal else None)


def movement(engine: TrialEngine, client: int, round: int) -> np.ndarray:
    return engine._moved(np.array([client]), round)[0].astype(np.float64)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_buffered_is_what_a_slow_simulation_of_events_gives(k):
    in_flight, rounds, world, engine = 12, 25, devices(), trial()
    server = Server(InTurn(), FedAvg(), engine, devices=world, pacing=Buffered(in_flight, k=k))
    result = server.run(rounds)

    sizes, transmission = engine.population.sizes, 2 * engine.population.spec.bytes / 1e12
    model, turn, now = np.zeros(engine.population.spec.size), 0, 0.0
    queue: list[tuple[float, int, int, int, float]] = []
    for round in range(rounds):
        version = round  # one aggregation a round
        while len(queue) + 3 <= in_flight:
            busy, cohort = {event[1] for event in queue}, []
            while len(cohort) < 3:
                if turn % CLIENTS not in busy and turn % CLIENTS not in cohort:
                    cohort.append(turn % CLIENTS)
                turn += 1
            for client in cohort:
                end = now + sizes[client] / world.speed[client] + transmission
                heapq.heappush(queue, (end, client, version, round, now))
        landed = [heapq.heappop(queue) for _ in range(k)]
        now = landed[-1][0]
        flown = result.records[round].trainings[0].flown
        assert flown.clients == [event[1] for event in landed]
        assert flown.ended == pytest.approx([event[0] for event in landed], rel=1e-9)
        assert flown.started == pytest.approx([event[4] for event in landed], abs=1e-9)
        assert flown.staleness == [version - event[2] for event in landed]
        weights = {event[1]: sizes[event[1]] / sum(sizes[e[1]] for e in landed) for event in landed}
        record = result.records[round].trainings[0]
        assert dict(zip(record.clients, record.weights, strict=True)) == pytest.approx(weights)
        model += sum(weights[event[1]] * movement(engine, event[1], event[3]) for event in landed)
    assert max(s for r in result.records for s in r.trainings[0].flown.staleness) > 1
    np.testing.assert_allclose(result.parameters, model, atol=1e-4)


def test_nobody_looks_twice_at_the_same_clients_at_the_same_moment(monkeypatch):
    server = Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=Buffered(12, k=3))
    looks: list[tuple[int, float, tuple[int, ...]]] = []
    usual = server.clock.reachable

    def reachable(round, clients):
        looks.append((round, server.clock.now, tuple(server.airspace.flights.clients.tolist())))
        return usual(round, clients)

    monkeypatch.setattr(server.clock, "reachable", reachable)
    server.run(10)
    # In the first step four cohorts set out, and whether there is room for a fifth needs no look.
    assert len(looks) == 4 + 9
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("aggregator", [FedAvg, SimProx])
def test_with_equal_devices_and_as_many_in_flight_as_taken_buffered_is_synchronous(aggregator):
    runs = []
    for pacing in (Synchronous(), Buffered(in_flight=4, k=4), Deadline(seconds=1e6, late="use"), OverSelect(1.0)):
        selector, engine = RandomSelection(clients_per_round=4), trial(equal=True)
        runs.append(Server(selector, aggregator(), engine, devices=devices(equal=True), pacing=pacing).run(8))
    first = runs[0]
    for other in runs[1:]:
        assert other.parameters.tobytes() == first.parameters.tobytes()
        assert other.selections == first.selections
        assert [r.ended for r in other.records] == [r.ended for r in first.records]


def test_the_same_bits_with_real_clients(tiny):
    equal = {"method": "lognormal", "compute_spread": 0.0, "network_spread": 0.0, "samples_per_second": 50.0}
    made = [
        run(tiny(devices=equal, partition={"scheme": "iid", "clients": 12}, rounds=3, pacing=pacing), workers=0)
        for pacing in ({}, {"method": "buffered", "in_flight": 5, "k": 5})
    ]
    assert made[0].parameters.tobytes() == made[1].parameters.tobytes()


def test_who_is_first_among_equals_is_not_a_matter_of_ids():
    firsts = np.zeros(CLIENTS)
    for seed in range(60):
        server = Server(
            RandomSelection(clients_per_round=20),
            FedAvg(),
            trial(equal=True),
            devices=devices(equal=True),
            pacing=OverSelect(2.0),
            seed=seed,
        )
        firsts[server.run(1).records[0].trainings[0].clients] += 1
    low, high = firsts[: CLIENTS // 2].sum(), firsts[CLIENTS // 2 :].sum()
    assert abs(low - high) < 4 * np.sqrt(60 * 10 / 4)


def test_over_selection_takes_the_fastest_and_books_the_rest():
    server = Server(InTurn(6), FedAvg(), trial(), devices=devices(), pacing=OverSelect(2.0))
    result = server.run(1)
    record, costs = result.records[0].trainings[0], result.ledger.total()
    times = server.engine.population.sizes[:6] / devices().speed[:6]
    assert record.clients == sorted(np.argsort(times)[:3].tolist())
    assert sorted(record.failed) == sorted(np.argsort(times)[3:].tolist())
    assert "given up on" in next(iter(record.failed.values()))
    assert costs.virtual_seconds == pytest.approx(np.sort(times)[2])
    assert (costs.client_trainings, costs.wasted_trainings) == (3, 3)
    assert costs.wasted_seconds == pytest.approx(3 * np.sort(times)[2])
    assert costs.bytes_down == 6 * server.engine.population.spec.bytes
    assert costs.bytes_up == 3 * server.engine.population.spec.bytes
    assert costs.wasted_bytes == 3 * server.engine.population.spec.bytes


def test_who_answers_at_the_moment_at_which_the_server_goes_on_has_sent_its_answer():
    world = devices(equal=True)
    world.speed[5] /= 2
    server = Server(InTurn(6), FedAvg(), trial(equal=True), devices=world, pacing=OverSelect(2.0))
    costs, model = server.run(1).ledger.total(), server.engine.population.spec.bytes
    assert (costs.client_trainings, costs.wasted_trainings) == (3, 3)
    assert costs.bytes_up == 5 * model
    assert costs.wasted_bytes == (3 + 2) * model


def test_a_deadline_that_nobody_meets_is_recorded_and_then_stops_the_run():
    server = Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=Deadline(seconds=1e-3))
    with pytest.raises(TrainingError, match=r"late: given up on after 0\.001"):
        server.run(50)
    assert len(server.records) > 1
    assert all(record.failed for record in server.records)
    assert server.clock.now == pytest.approx(1e-3 * len(server.records))
    assert (server.parameters == 0).all()


def test_late_answers_are_used_when_they_arrive():
    discarded, used = (
        Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=Deadline(seconds=4.0, late=late)).run(20)
        for late in ("discard", "use")
    )
    lost, kept = discarded.ledger.total(), used.ledger.total()
    assert lost.wasted_trainings > 5
    assert kept.wasted_trainings == 0
    assert kept.client_trainings > lost.client_trainings
    assert max(s for r in used.records for t in r.trainings for s in t.flown.staleness) > 0


def test_what_is_too_stale_is_thrown_away_and_booked():
    pacing = Buffered(in_flight=12, k=1, max_staleness=3)
    server = Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=pacing)
    result = server.run(60)
    flown = [t.flown for r in result.records for t in r.trainings]
    outcomes = [(s, o) for f in flown for s, o in zip(f.staleness, f.outcome, strict=True)]
    assert {o for s, o in outcomes if s > 3} == {"stale"}
    assert {o for s, o in outcomes if s <= 3} == {"used"}
    assert result.ledger.total().wasted_trainings == sum(o == "stale" for _, o in outcomes) > 0
    assert all(len(r.trainings[0].clients) == 1 for r in result.records)


def test_models_are_kept_only_while_somebody_works_on_them():
    server = Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=Buffered(in_flight=9, k=3))
    server.run(40)
    assert len(server.airspace) == 6
    assert server.airspace.versions <= 6


def test_nobody_misses_a_deadline_that_is_its_own_last_duration():
    """Moments are sums, and their differences are rounded: a duration must not be one of those."""
    everybody = RandomSelection(clients_per_round=CLIENTS)
    server = Server(everybody, FedAvg(), trial(), devices=devices(), pacing=Deadline(quantile=1.0))
    result = server.run(40)
    assert result.ledger.total().wasted_trainings == 0
    times = server.engine.population.sizes / devices().speed + 2 * server.engine.population.spec.bytes / 1e12
    assert result.history.durations.tolist() == pytest.approx(times.tolist(), rel=1e-12)


@dataclass
class NowAndThen(Selector):
    """Chooses as many as it is told, round by round: perhaps nobody."""

    counts: tuple[int, ...] = (6, 0, 1)

    def round(self, fed: View) -> Plan:
        yield Train(fed.sample(self.counts[fed.round % len(self.counts)]))


def test_who_is_under_way_is_waited_for_when_nobody_is_chosen():
    pacing = Buffered(in_flight=12)
    result = Server(NowAndThen(), FedAvg(), trial(), devices=devices(), pacing=pacing).run(60)
    assert not any(record.failed for record in result.records)
    assert all(later.ended >= record.ended for record, later in itertools.pairwise(result.records))


def test_there_are_never_more_under_way_than_the_pacing_lets():
    most = []

    class Counting(Observer):
        def round_ended(self, record, ledger):
            started = [s for t in record.trainings for s in t.flown.started]
            most.append((len(server.airspace), len(started)))

    server = Server(
        NowAndThen((1, 2, 8, 3, 8)),
        FedAvg(),
        trial(),
        devices=devices(),
        pacing=Buffered(in_flight=9, k=1),
        observers=[Counting()],
    )
    result = server.run(60)
    assert max(left + landed for left, landed in most) <= 9
    assert any("chosen clients started" in e for r in result.records for e in r.events)
    again = Server(server.selector, FedAvg(), trial(), devices=devices(), pacing=server.pacing).run(60)
    assert again.parameters.tobytes() == result.parameters.tobytes()


# --- sessions --------------------------------------------------------------------------------------------


def trace(tmp_path, *sessions: tuple[list[float], list[float]], finish: float = 1000.0) -> dict[str, str]:
    file = tmp_path / "trace.json"
    entries = [
        {"id": i, "ms_per_sample": 100.0, "kbps": 1e6, "active": list(a), "inactive": list(b), "finish": finish}
        for i, (a, b) in enumerate(sessions)
    ]
    file.write_text(json.dumps(entries))
    return {"method": "sessions", "file": str(file)}


def on_trace(tiny, tmp_path, sessions, **changes):
    availability = trace(tmp_path, *sessions)
    devices = {"method": "trace", "file": availability["file"], "reference_flops": 1.0, "flops_per_sample": 1.0}
    return tiny(availability=availability, devices=devices, partition={"scheme": "iid", "clients": 12}, **changes)


def test_a_client_whose_session_ends_drops_out(tiny, tmp_path):
    # 100 ms a sample, about 120 samples each: 12 s. Every other device is gone after 5 s.
    sessions = [([0.0], [5.0 if i % 2 else 1000.0]) for i in range(12)]
    experiment = on_trace(tiny, tmp_path, sessions, rounds=1, selection={"clients_per_round": 12})
    result = run(experiment, workers=0)
    record, costs = result.records[0].trainings[0], result.ledger.total()
    assert len(record.clients) == 6
    assert all(reason.startswith("left after 5 of") for reason in record.failed.values())
    assert costs.wasted_trainings == 6
    assert costs.wasted_seconds == pytest.approx(30.0)
    assert record.flown.outcome.count("left") == 6


def test_the_clock_goes_on_to_the_next_session(tiny, tmp_path):
    sessions = [([100.0 + i], [900.0]) for i in range(12)]
    result = run(on_trace(tiny, tmp_path, sessions, rounds=1), workers=0)
    assert "no client was there for 100 s" in result.records[0].events
    assert result.records[0].began == 0
    assert result.records[0].ended > 100


def test_a_day_without_anybody_is_waited_out(tiny, tmp_path):
    # Sessions of 50 s at the start of a period of 2 days: 12 s a round, then nobody until the period is over.
    sessions = [([0.0], [50.0]) for _ in range(12)]
    experiment = on_trace(tiny, tmp_path, sessions, rounds=6)
    file = json.loads((tmp_path / "trace.json").read_text())
    (tmp_path / "trace.json").write_text(json.dumps([{**entry, "finish": 172_800.0} for entry in file]))
    result = run(experiment, workers=0)
    assert any(event.startswith("no client was there for") for record in result.records for event in record.events)
    assert result.records[-1].ended > 172_800


def test_varying_durations_are_the_same_again(tiny):
    devices = {"method": "lognormal", "jitter": 0.5}
    first, second = (run(tiny(devices=devices), workers=0) for _ in range(2))
    assert [r.ended for r in first.records] == [r.ended for r in second.records]
    assert len({r.ended - r.began for r in first.records}) == 3


# --- what does not fit -----------------------------------------------------------------------------------

BUFFERED = {"method": "buffered", "in_flight": 10}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": {"method": "terraform", "clients_per_round": 10}}, "trains more than once in a round"),
        ({"selection": {"method": "fedpns", "clients_per_round": 5}}, "which of its updates are used"),
        (
            {"selection": {"method": "probe-fairness", "clients_per_round": 5}},
            "continue training from what they did",
        ),
        ({"selection": {"method": "feddiverse", "clients_per_round": 5}}, "another aggregation"),
        ({"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}}, "must move together"),
        ({"algorithm": {"method": "feddyn"}, "aggregation": {"method": "feddyn"}}, "must move together"),
        ({"devices": {}}, "they take no time"),
        ({"devices": {}, "pacing": {}, "availability": {"method": "rhythm"}}, "without devices no time passes"),
        ({"pacing": {"method": "bufered"}}, "buffered"),
        ({"pacing": {"method": "buffered", "in_flight": 5, "k": 6}}, "in_flight"),
        ({"pacing": {"method": "buffered", "in_flight": 3}}, "5 clients at once"),
        ({"pacing": {"method": "over-select"}, "selection": {"method": "round-robin"}}, "clients_per_round"),
    ],
)
def test_what_makes_no_sense_with_late_answers_is_refused_before_round_1(tiny, changes, message):
    experiment = tiny(**{"devices": {"method": "lognormal"}, "pacing": BUFFERED} | changes)
    with pytest.raises(ConfigError, match=message):
        run(experiment, workers=0)


def test_a_selector_finds_its_reports_when_nobody_has_answered():
    """Nobody meets the deadline, all go on: the training that waits gets the replies of nobody, not a KeyError."""
    told: list[tuple[int, bool]] = []

    class Curious(Selector):
        def round(self, fed: View) -> Plan:
            replies = yield Train(fed.sample(3), report=(SquaredLoss(),))
            told.append((len(replies), len(replies["squared_loss"]) == len(replies)))

    pacing = Deadline(seconds=0.004, late="use")
    result = Server(Curious(), FedAvg(), trial(), devices=devices(), pacing=pacing).run(120)
    assert (0, True) in told
    assert all(fits for _, fits in told)
    # More rounds than may fail in a row, and none of them has: everybody is under way, and then they answer.
    assert all(record.only_waited for record in result.records[:80])
    assert any(record.trainings[0].clients for record in result.records[80:])


def test_what_is_too_stale_was_told_all_the_same():
    pacing = Buffered(in_flight=12, k=1, max_staleness=3)
    server = Server(InTurn(), FedAvg(), trial(), devices=devices(), pacing=pacing)
    result = server.run(60)
    costs = result.ledger.total()
    told = sum(round.get("model update", 0) for round in result.ledger.disclosed)
    assert told == costs.client_trainings + costs.wasted_trainings
    stale = {c for r in result.records for c, why in r.trainings[0].rejected.items() if "too stale" in why}
    assert not np.isnan(server.history.durations[sorted(stale)]).any(), "how long they took is known"


def test_what_does_not_fit_is_found_in_a_trial_before_round_1(tiny):
    """The check alone refuses it: no round has begun."""

    class Twice(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(fed.available[:2])
            yield Train(fed.available[2:4])

    class Asks(Selector):
        def round(self, fed: View) -> Plan:
            yield Ask(fed.available, (ProbeNorm(),))
            yield Train(fed.available[:2])

    class Secretly(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(fed.available[:2], fedavg=True)

    class Chooses(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(fed.available[:2], keep=lambda replies: replies.clients > 0)

    def check(selector: Selector, pacing: Pacing) -> None:
        Server(selector, FedAvg(), trial(), devices=devices(), pacing=pacing).check(3)

    for selector, why in (
        (Twice(), "trains more than once in a round"),
        (Asks(), "continue training from what they did"),
        (Secretly(), "another aggregation"),
        (Chooses(), "which of its updates are used"),
    ):
        with pytest.raises(ConfigError, match=why):
            check(selector, Buffered(in_flight=6))
        # Where late answers are discarded, none of this matters.
        check(selector, OverSelect(2.0))
        check(selector, Deadline(seconds=1.0))
        check(selector, Synchronous())


def test_a_cohort_fits_exactly_or_is_refused():
    def check(in_flight: int) -> None:
        Server(InTurn(5), FedAvg(), trial(), devices=devices(), pacing=Buffered(in_flight)).check(3)

    check(5)
    with pytest.raises(ConfigError, match="InTurn chose 5 clients at once: more than the pacing 'buffered' lets"):
        check(4)


def test_sums_of_a_cohort_cannot_be_paced():
    class Sums(WrappedEngine):
        @property
        def sums_only(self) -> bool:
            return True

    def check(pacing: Pacing) -> None:
        Server(RandomSelection(3), FedAvg(), Sums(trial()), devices=devices(), pacing=pacing).check(3)

    check(Synchronous())
    with pytest.raises(ConfigError, match="'over-select' does not work with secure aggregation"):
        check(OverSelect(2.0))


def test_a_pacing_without_time_is_refused_and_waiting_for_all_is_not():
    Server(RandomSelection(3), FedAvg(), trial(), pacing=Synchronous()).check(3)
    with pytest.raises(ConfigError, match="'deadline' depends on how long clients take"):
        Server(RandomSelection(3), FedAvg(), trial(), pacing=Deadline(seconds=1.0)).check(3)
