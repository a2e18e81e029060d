"""The clock as the server uses it: when trainings have ended, and how the answers are obtained.

Here time is virtual: when a training ends is known when it begins, and clients train when the server moves on with
their answers. On a federation in real time (`server.real_time`) trainings end when they end; in a replay
(`server.recorded_time`) when the record says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from muster.core.arrays import Bools, Ints
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.live import LostAnswer
from muster.server.flights import Airspace, Dispatch, Flights
from muster.server.ledger import Load
from muster.server.record import Observed
from muster.signals.base import Signal
from muster.updates.table import Updates
from muster.world.clock import Clock, Errand, Trips

#: Which clients under way have ended when the server moves on, in that order, and when that is.
Decision: TypeAlias = Callable[[Flights], tuple[Ints, float]]


@dataclass(frozen=True)
class Landed:
    """Which have ended when the server moves on, as positions in the airspace, in the order in which they did."""

    ended: Ints
    moment: float
    #: Position → why there is no answer, where the flights themselves do not say so.
    problems: Mapping[int, LostAnswer] = field(default_factory=dict)


@dataclass(frozen=True)
class TooLate:
    """An answer that came after the server had stopped waiting: what travelled, and what it disclosed."""

    client: int
    load: Load
    report: tuple[Signal, ...]


class ServerClock(Clock):
    """Virtual time."""

    @property
    def passes(self) -> bool:
        """Whether anything takes time."""
        return self.devices is not None

    @property
    def observed(self) -> Observed | None:
        """What this round's record has to hold besides trainings, so that it can be repeated."""
        return None

    def begin_round(self, round: int, engine: Engine) -> list[Dispatch]:
        """A round begins; the trainings that had to be asked for once more."""
        return []

    def go_on(self, now: float, airspace: Airspace) -> None:
        """Continue from a checkpoint, with the clients that were working then."""
        self.now = now

    def asking(self, errand: Errand) -> Trips:
        """What is known beforehand about the answers to a question."""
        return self.trips(errand)

    def asked(self, trips: Trips, silent: list[int]) -> None:
        """A question has been answered, except by those that are `silent`."""
        self.advance(float(trips.ends.max(initial=0.0)))

    def sending(self, errand: Errand) -> Trips:
        """What is known beforehand about a training that is about to begin."""
        return self.trips(errand)

    def sent(self, dispatch: Dispatch, engine: Engine) -> None:
        """Clients are told to train. In virtual time they do when their answers are collected."""
        return

    def land(self, airspace: Airspace, decide: Decision) -> Landed:
        """Wait until the server can move on."""
        return Landed(*decide(airspace.flights))

    def collect(self, engine: Engine, orders: Sequence[TrainOrder]) -> Iterator[Updates | Failed]:
        """The answers of clients that have landed."""
        if len(orders) == 1:
            return engine.train(orders[0])
        for order in orders:
            engine.start(order)
        return engine.collect()

    def has_come(self, flights: Flights) -> Bools:
        """Whose answers are there, among clients that the server no longer waits for."""
        return flights.answers & (flights.ends <= self.now)

    def give_up(self, dispatch: Dispatch, *, answered: bool) -> None:
        """The answers of these clients are no longer wanted; `answered`: they have already arrived."""
        return

    def too_late(self) -> list[TooLate]:
        """Who has answered after being given up, since the last call."""
        return []
