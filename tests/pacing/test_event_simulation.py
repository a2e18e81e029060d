"""Every pacing against a slow simulation of events that shares no code with the server.

Clients come and go by sessions, drop out, are late, and answer to old models. The simulation walks through one
event after the other with lists and dictionaries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.core.component import state
from muster.engine.trial import TrialEngine
from muster.pacing.base import Pacing
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.over_select import OverSelect
from muster.pacing.pisces import PiscesPace
from muster.pacing.synchronous import Synchronous
from muster.selection.base import Plan, Selector, Train, View
from muster.server import Server
from muster.updates.guard import Guard
from muster.world.availability import TimedAvailability
from muster.world.devices.base import Devices

CLIENTS, COHORT, ROUNDS = 24, 4, 40


@dataclass(frozen=True)
class Timetable(TimedAvailability):
    """Sessions that are told."""

    sessions: tuple[tuple[tuple[float, float], ...], ...]

    def states(self, now, who, seed):
        there, changes = np.zeros(len(who), dtype=bool), np.full(len(who), np.inf)
        for row, client in enumerate(who.tolist()):
            for begin, end in self.sessions[client]:
                if now < end:
                    there[row], changes[row] = begin <= now, begin if now < begin else end
                    break
        return there, changes


@dataclass
class InTurn(Selector):
    """The next clients in turn who are there and idle; fewer where there are not so many."""

    clients_per_round: int = COHORT
    turn: int = state(lambda: 0)

    def round(self, fed: View) -> Plan:
        chosen, self.turn = next_in_turn(self.turn, fed.available.tolist())
        yield Train(np.sort(chosen))


def next_in_turn(turn: int, free: list[int]) -> tuple[list[int], int]:
    chosen: list[int] = []
    for _ in range(CLIENTS):
        if len(chosen) < COHORT and turn % CLIENTS in free:
            chosen.append(turn % CLIENTS)
        turn += len(chosen) < COHORT or turn % CLIENTS == chosen[-1]
        if len(chosen) == COHORT:
            break
    return chosen, turn


def world(seed: int) -> tuple[Devices, Timetable]:
    """Slow and fast devices; sessions of a few trainings, with gaps, and a night in which nobody is there."""
    rng = np.random.default_rng(seed)
    devices = Devices(rng.lognormal(1.5, 0.9, CLIENTS), np.full(CLIENTS, 1e12), np.full(CLIENTS, 1e12))
    tables = []
    for _ in range(CLIENTS):
        sessions, moment = [], float(rng.uniform(0, 20))
        while moment < 5_000:
            end = moment + float(rng.exponential(60)) + 5
            if end < 60 or moment > 200:
                sessions.append((moment, end))
            moment = end + float(rng.exponential(25)) + 1
        tables.append(tuple(sessions))
    return devices, Timetable(tuple(tables))


@dataclass
class Event:
    """A client at work."""

    client: int
    started: float
    ends: float
    answers: bool
    version: int
    round: int
    training: int
    needed: float


@dataclass
class SlowServer:
    """The same as `Server`, one event at a time."""

    pacing: Pacing
    devices: Devices
    timetable: Timetable
    engine: TrialEngine
    now: float = 0.0
    version: int = 0
    turn: int = 0
    last_cohort: int = 0
    wasted: int = 0
    flying: list[Event] = field(default_factory=list)
    durations: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = np.zeros(self.engine.population.spec.size)
        self.trainings = 0

    def session_end(self, client: int) -> float | None:
        return next((e for b, e in self.timetable.sessions[client] if b <= self.now < e), None)

    def free(self) -> list[int]:
        busy = {event.client for event in self.flying}
        return [c for c in range(CLIENTS) if c not in busy and self.session_end(c) is not None]

    def start(self, round: int) -> int:
        chosen, self.turn = next_in_turn(self.turn, self.free())
        self.trainings += 1
        for client in chosen:
            size, model = self.engine.population.sizes[client], self.engine.population.spec.bytes
            needed = size / self.devices.speed[client] + 2 * model / 1e12
            session = self.session_end(client)
            ends = min(self.now + needed, session)
            self.flying.append(
                Event(
                    client,
                    self.now,
                    ends,
                    self.now + needed <= session,
                    self.version,
                    round,
                    self.trainings,
                    needed,
                )
            )
        self.last_cohort = len(chosen) or self.last_cohort
        return self.trainings

    def round(self, round: int) -> list[tuple[Event, str]]:
        if not self.flying and not self.free():
            self.now = min(b for table in self.timetable.sessions for b, _ in table if b > self.now)
        mine = None
        if isinstance(self.pacing, Buffered | PiscesPace):
            while self.free() and len(self.flying) + COHORT <= self.pacing.in_flight:
                mine = self.start(round)
        elif self.free():
            mine = self.start(round)
        return self.wait(mine)

    def goal(self, started: int) -> tuple[int, float]:
        """How many answers are enough, and when the server goes on without them."""
        match self.pacing:
            case OverSelect(factor=factor):
                return max(1, math.floor(started / factor + 1e-9)), math.inf
            case Deadline(seconds=float(seconds)):
                return started, self.now + seconds
            case Deadline(quantile=float(share)):
                known = sorted(self.durations.values())
                # The lower of the two neighbours of the quantile.
                return started, self.now + known[math.floor(share * (len(known) - 1))] if known else math.inf
            case Buffered(k=k):
                return k or started, math.inf
            case PiscesPace():
                return 1, math.inf
        return started, math.inf

    def earliest(self) -> float:
        """Before this moment the server does not go on, unless there is nobody left to wait for."""
        if not isinstance(self.pacing, PiscesPace):
            return -math.inf
        longest = max(self.durations.values(), default=0.0)
        first = self.pacing.first_latency or longest
        slowest = max((self.durations.get(event.client, first) for event in self.flying), default=0.0)
        return self.now + slowest / (self.pacing.bound or self.pacing.in_flight)

    def wait(self, mine: int | None) -> list[tuple[Event, str]]:
        own = [event for event in self.flying if event.training == mine]
        enough, limit = self.goal(len(own) if mine else self.last_cohort)
        earliest = self.earliest()
        everybody = isinstance(self.pacing, Buffered | PiscesPace) or mine is None
        awaited = list(self.flying) if everybody else own
        done: list[tuple[Event, str]] = []
        valid = 0
        while awaited and (valid < enough or min(event.ends for event in self.flying) <= earliest):
            event = min(self.flying, key=lambda event: event.ends)
            if event.ends > limit:
                break
            self.flying.remove(event)
            behind = self.version - event.version
            fresh = self.pacing.max_staleness is None or behind <= self.pacing.max_staleness
            done.append((event, "left" if not event.answers else "used" if fresh else "stale"))
            if any(event is other for other in awaited):
                awaited = [other for other in awaited if other is not event]
                valid += event.answers and fresh
            self.now = max(self.now, event.ends)
        else:
            limit = max(self.now, earliest) if awaited else self.now
        self.now = max(self.now, limit) if math.isfinite(limit) else self.now
        if not self.pacing.late_count:
            done += [(event, "late") for event in own if event in self.flying]
            self.flying = [event for event in self.flying if event.training != mine]
        self.account(done)
        return done

    def account(self, done: list[tuple[Event, str]]) -> None:
        sizes = self.engine.population.sizes
        used = [event for event, how in done if how == "used"]
        whole = sum(sizes[event.client] for event in used)
        for event in used:
            moved = self.engine._moved(np.array([event.client]), event.round)[0].astype(float)
            self.model = self.model + sizes[event.client] / whole * moved
        self.version += bool(used)
        self.wasted += len(done) - len(used)
        for event, how in done:
            if how == "late":
                self.durations[event.client] = math.inf
            elif how == "used":
                self.durations[event.client] = event.needed


PACINGS = {
    "synchronous": Synchronous(),
    "over-select": OverSelect(1.4),
    "deadline": Deadline(seconds=9.0),
    "deadline by quantile": Deadline(quantile=0.6),
    "late answers used": Deadline(seconds=6.0, late="use"),
    "late answers used, not too old": Deadline(seconds=4.0, late="use", max_staleness=2),
    "buffered": Buffered(in_flight=12, k=4),
    "fully asynchronous": Buffered(in_flight=9, k=1),
    "buffered, not too old": Buffered(in_flight=14, k=2, max_staleness=3),
    "pisces": PiscesPace(in_flight=12),
    "pisces, seldom": PiscesPace(in_flight=12, bound=1.5, first_latency=30.0),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", PACINGS)
def test_same_arrivals_staleness_weights_and_model(name, seed):
    pacing, (devices, timetable) = PACINGS[name], world(seed)
    engine = TrialEngine(CLIENTS, sizes=np.random.default_rng(seed).integers(10, 60, CLIENTS))
    guard = Guard(max_failed_rounds=ROUNDS)
    server = Server(
        InTurn(), FedAvg(), engine, devices=devices, availability=timetable, pacing=pacing, guard=guard
    )
    result, slow = server.run(ROUNDS), SlowServer(pacing, devices, timetable, engine)
    for number, record in enumerate(result.records):
        done = sorted(slow.round(number), key=lambda row: (row[1] == "late", row[0].ends))
        flown = [t.flown for t in record.trainings]
        assert sum(len(f.clients) for f in flown) == len(done), number
        assert record.ended == pytest.approx(slow.now, rel=1e-9)
        if not done:
            continue
        (training,) = record.trainings
        order = slice(0, sum(how != "late" for _, how in done))  # who is given up on has no order
        assert training.flown.clients[order] == [event.client for event, _ in done][order]
        theirs = {event.client: (event, how) for event, how in done}
        for client, began, ended, how in zip(
            training.flown.clients,
            training.flown.started,
            training.flown.ended,
            training.flown.outcome,
            strict=True,
        ):
            event, expected = theirs[client]
            assert how == expected
            assert began == pytest.approx(event.started)
            assert ended == pytest.approx(min(event.ends, slow.now))
        used = [event for event, how in done if how == "used"]
        whole = sum(engine.population.sizes[event.client] for event in used)
        weights = {event.client: engine.population.sizes[event.client] / whole for event in used}
        assert dict(zip(training.clients, training.weights, strict=True)) == pytest.approx(weights)
    assert result.ledger.total().wasted_trainings == slow.wasted
    np.testing.assert_allclose(result.parameters, slow.model, atol=1e-4)
    assert any("no client was there for" in event for r in result.records for event in r.events)
    seen = {how for r in result.records for t in r.trainings for how in t.flown.outcome}
    assert {"used", "left"} <= seen  # the worlds are rough enough
    if pacing.max_staleness is not None:
        assert "stale" in seen
    if not pacing.late_count and name != "synchronous":
        assert "late" in seen
