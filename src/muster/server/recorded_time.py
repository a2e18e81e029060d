"""Recorded time: trainings begin and end when the record of a run says they did.

Only what does not follow from the description is taken from the record: when trainings ended and how, and for a
run in real time also who was there, who did not answer, and when the server read its clock. Everything else (who
is selected, what is computed, how it is weighted) is done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from muster.core.arrays import Bools, Ints
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.live import LostAnswer
from muster.server.clocks import Decision, Landed, ServerClock
from muster.server.flights import Airspace, Dispatch, positions
from muster.server.record import Observed, Outcome, RoundRecord
from muster.updates.filters import Draws, Filter, Filtered, without
from muster.updates.table import Updates
from muster.world.availability import Availability
from muster.world.clock import Errand, Trips
from muster.world.devices import Devices


@dataclass(frozen=True)
class _Flight:
    """One training of one client, as it was recorded."""

    started: float
    ended: float
    outcome: Outcome
    #: Why it was refused or failed.
    reason: str


class RecordedClock(ServerClock):
    """The time of an earlier run."""

    passes = True

    def __init__(
        self,
        records: Sequence[RoundRecord],
        devices: Devices | None,
        availability: Availability | None,
        seed: int,
    ) -> None:
        real = any(record.observed is not None for record in records)
        super().__init__(None if real else devices, availability, seed)
        self._records = records
        self._flights = _flights(records)
        #: The recorded flights of those that are under way, and of those that landed last.
        self._under_way: dict[int, _Flight] = {}
        self._landed: dict[int, _Flight] = {}
        self._round = 0
        self._told: Observed | None = None
        self._moments: deque[float] = deque()
        self._silent: deque[list[int]] = deque()

    def begin_round(self, round: int, engine: Engine) -> list[Dispatch]:
        self._round, self._told = round, self._records[round].observed
        if self._told is not None:
            self._moments, self._silent = deque(self._told.moments), deque(self._told.silent)
            self._tick()
        return []

    def reachable(self, round: int, clients: int) -> Bools | None:
        there = super().reachable(round, clients)
        if self._told is None or not self._told.absent:
            return there
        marks = np.ones(clients, dtype=np.bool_) if there is None else there
        marks[self._told.absent] = False
        return marks

    def asking(self, errand: Errand) -> Trips:
        if self._told is None:
            return super().asking(errand)
        if not self._silent:
            raise self._differs("asks a question")
        now = np.full(len(errand.clients), self.now)
        return Trips(now, ~np.isin(errand.clients, self._silent.popleft()), np.zeros(len(errand.clients)))

    def asked(self, trips: Trips, silent: list[int]) -> None:
        if self._told is None:
            super().asked(trips, silent)
        else:
            self._tick()

    def sending(self, errand: Errand) -> Trips:
        if self._told is not None:
            self._tick()
        clients = errand.clients
        ends, answers = np.full(len(clients), np.inf), np.ones(len(clients), dtype=np.bool_)
        # In virtual time what a client needs is known; in real time it is what it took.
        needed = ends.copy()
        if self._told is None:
            needed = super().sending(errand).needed
        for row, client in enumerate(clients.tolist()):
            recorded = self._flights.get(client)
            if not recorded:  # still working when the run ended
                continue
            flight = recorded.popleft()
            if flight.started != self.now:
                raise self._differs(f"tells client {client} to train at {self.now:.6g} s")
            self._under_way[client] = flight
            if flight.outcome == "late":  # given up on: when it would have answered is not known
                continue
            ends[row] = flight.ended
            if self._told is not None:
                needed[row] = flight.ended - flight.started
            # A failure in virtual time shows only when the answer is collected.
            answers[row] = flight.outcome not in ("left", *(["failed"] if self._told is not None else []))
        return Trips(ends, answers, needed)

    def land(self, airspace: Airspace, decide: Decision) -> Landed:
        ended, moment = decide(airspace.flights)
        if not np.isfinite(moment):
            raise self._differs("waits for clients that never answered")
        clients = airspace.flights.clients
        self._landed = {client: self._under_way[client] for client in clients[ended].tolist()}
        problems = {
            row: LostAnswer(flight.reason, gone=flight.outcome == "left")
            for row in ended.tolist()
            if not airspace.flights.answers[row] and (flight := self._landed[int(clients[row])])
        }
        return Landed(ended, moment, problems)

    def collect(self, engine: Engine, orders: Sequence[TrainOrder]) -> Iterator[Updates | Failed]:
        answering = []
        for order in orders:
            failing = [client for client in order.clients.tolist() if self._landed[client].outcome == "failed"]
            for client in failing:
                yield Failed(client, self._landed[client].reason)
            rest = np.setdiff1d(order.clients, failing, assume_unique=True)
            if len(rest):
                answering.append(order if not failing else _of(order, rest))
        if answering:
            yield from super().collect(engine, answering)

    def refusals(self, clients: Ints) -> dict[int, str]:
        """Row → why, for those of the clients that landed last whose answers were refused."""
        flights = ((row, self._landed[client]) for row, client in enumerate(clients.tolist()))
        return {row: flight.reason for row, flight in flights if flight.outcome == "refused"}

    def _tick(self) -> None:
        if not self._moments:
            raise self._differs("continues where the record ends")
        self.advance(self._moments.popleft())

    def _differs(self, what: str) -> TrainingError:
        return TrainingError(
            f"round {self._round + 1} cannot be repeated: the run {what}, which the record does not know",
            fix="repeat it with the version of Muster, the data and the libraries that made it "
            "(`muster runs show` names them)",
        )


@dataclass(frozen=True)
class AsRecorded(Filter):
    """Refuses what was refused: what a client sent instead of what it computed cannot be computed again."""

    clock: RecordedClock

    changes: ClassVar[bool] = False

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return without(updates, self.clock.refusals(updates.clients))


def _flights(records: Sequence[RoundRecord]) -> dict[int, deque[_Flight]]:
    """The trainings of each client, in the order in which they began."""
    flights: dict[int, deque[_Flight]] = {}
    for training in (training for record in records for training in record.trainings):
        reasons, flown = {**training.failed, **training.rejected}, training.flown
        rows = zip(flown.clients, flown.started, flown.ended, flown.outcome, strict=True)
        for client, started, ended, outcome in rows:
            flight = _Flight(started, ended, outcome, reasons.get(client, ""))
            flights.setdefault(client, deque()).append(flight)
    return flights


def _of(order: TrainOrder, clients: Ints) -> TrainOrder:
    """The part of an order that concerns some of its clients."""
    at = positions(order.clients, clients)
    factors: dict[str, Any] = {
        name: None if getattr(order, name) is None else getattr(order, name)[at]
        for name in ("lr_factors", "pull_factors")
    }
    return replace(order, clients=clients, **factors)
