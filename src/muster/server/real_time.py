"""Real time: trainings begin when they are asked for, and end when the answer is seen.

The pacing's rule is that of virtual time, applied to what has arrived so far: clients that have not arrived count
as never arriving, and the server moves on as soon as the moment that the rule names is not in the future. So the
same rule, given all arrivals afterwards, makes the same decisions: this is how a run is replayed
(`server.recorded_time`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from muster.core.arrays import Bools, Ints
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.live import Live, LostAnswer
from muster.engine.task import Place
from muster.server.clocks import Decision, Landed, ServerClock, TooLate
from muster.server.flights import Airspace, Dispatch, Flights
from muster.server.record import Observed
from muster.updates.table import Updates
from muster.world.availability import Availability
from muster.world.clock import Errand, Trips


class RealClock(ServerClock):
    """Seconds since the run began. Decisions know only the moments at which it was read, and these are kept."""

    passes = True

    def __init__(self, live: Live, availability: Availability | None, seed: int) -> None:
        super().__init__(None, availability, seed)
        self._live = live
        self._offset = -live.seconds()
        self._seen = -np.inf
        self._observed = Observed()
        #: Why clients that have arrived without an answer have none, until they land.
        self._problems: dict[tuple[Place, int], LostAnswer] = {}
        #: What those would send who were given up on; not their orders, which hold models.
        self._given_up: dict[tuple[Place, int], TooLate] = {}
        #: The airspace of a checkpoint, whose orders must be sent again.
        self._again: Airspace | None = None

    @property
    def observed(self) -> Observed:
        return self._observed

    def begin_round(self, round: int, engine: Engine) -> list[Dispatch]:
        clients = engine.population.clients
        absent = np.setdiff1d(np.arange(clients), engine.reachable(round), assume_unique=True)
        self._observed = Observed(absent=absent.tolist())
        self._tick()
        return self._send_again(engine)

    def go_on(self, now: float, airspace: Airspace) -> None:
        """The answers that were under way have no recipient any more: their orders are sent again."""
        super().go_on(now, airspace)
        self._offset = now - self._live.seconds()
        self._again = airspace if len(airspace) else None

    def asking(self, errand: Errand) -> Trips:
        return _open(errand.clients)

    def asked(self, trips: Trips, silent: list[int]) -> None:
        self._tick()
        self._observed.silent.append(sorted(silent))

    def sending(self, errand: Errand) -> Trips:
        self._tick()
        return _open(errand.clients)

    def sent(self, dispatch: Dispatch, engine: Engine) -> None:
        engine.start(dispatch.order)

    def land(self, airspace: Airspace, decide: Decision) -> Landed:
        while True:
            look = self._look()
            self._note_arrivals(airspace, look)
            ended, moment = decide(airspace.flights)
            if moment <= look:
                break
            self._live.pause()
        flights = airspace.flights
        problems = {}
        for row in ended.tolist():
            place = airspace.dispatch(int(flights.dispatch[row])).order.place
            if (problem := self._problems.pop((place, int(flights.clients[row])), None)) is not None:
                problems[row] = problem
        return Landed(ended, moment, problems)

    def collect(self, engine: Engine, orders: Sequence[TrainOrder]) -> Iterator[Updates | Failed]:
        return self._live.answers(orders)

    def has_come(self, flights: Flights) -> Bools:
        # Also what was first seen at a look after the moment at which the server went on.
        return flights.answers & np.isfinite(flights.ends)

    def give_up(self, dispatch: Dispatch, *, answered: bool) -> None:
        order = dispatch.order
        for client in order.clients.tolist() if not answered else ():
            self._given_up[order.place, client] = TooLate(client, dispatch.load, order.report)
        self._live.give_up(order)

    def too_late(self) -> list[TooLate]:
        return [self._given_up.pop(who) for who in self._live.too_late() if who in self._given_up]

    def _note_arrivals(self, airspace: Airspace, look: float) -> None:
        arrivals = self._live.arrivals()
        if not arrivals:
            return
        flights = airspace.flights
        rows = {
            (airspace.dispatch(number).order.place, client): row
            for row, (number, client) in enumerate(
                zip(flights.dispatch.tolist(), flights.clients.tolist(), strict=True)
            )
        }
        ends, answers, needed = flights.ends.copy(), flights.answers.copy(), flights.needed.copy()
        for arrival in arrivals:
            row = rows[arrival.place, arrival.client]
            ends[row], answers[row] = look, arrival.problem is None
            needed[row] = look - flights.started[row]
            if arrival.problem is not None:
                self._problems[arrival.place, arrival.client] = arrival.problem
        airspace.flights = replace(flights, ends=ends, answers=answers, needed=needed)

    def _send_again(self, engine: Engine) -> list[Dispatch]:
        airspace, self._again = self._again, None
        if airspace is None:
            return []
        flights = airspace.flights
        trips = _open(flights.clients)
        airspace.flights = replace(flights, ends=trips.ends, answers=trips.answers, needed=trips.needed)
        again = airspace.parts(flights)
        for dispatch in again:
            engine.start(dispatch.order)
        return again

    def _look(self) -> float:
        """The time; always later than at the last look, so that what is seen at two looks has an order."""
        self._seen = max(self._offset + self._live.seconds(), float(np.nextafter(self._seen, np.inf)), self.now)
        return self._seen

    def _tick(self) -> None:
        """Read the clock: from now on decisions may use this time."""
        self.advance(self._look())
        self._observed.moments.append(self.now)


def _open(clients: Ints) -> Trips:
    """Nothing is known yet: no client has arrived."""
    never = np.full(len(clients), np.inf)
    return Trips(never, np.ones(len(clients), dtype=np.bool_), never)
