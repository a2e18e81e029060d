"""Waiting for answers: who has arrived when the server moves on, and what became of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from muster.core.arrays import Bools, Ints, among
from muster.core.component import Population
from muster.engine.base import Failed, narrowed
from muster.engine.task import Place
from muster.pacing.base import Wait, landing
from muster.selection.base import Train
from muster.server.flights import Dispatch, Flights
from muster.server.record import Flown, Outcome, TrainingRecord
from muster.server.training import Aggregation
from muster.signals.base import Replies, Signal

if TYPE_CHECKING:
    from muster.server.conversation import Conversation


class Landing:
    """Waits, and makes the next model from the answers that have arrived meanwhile."""

    def __init__(self, talk: Conversation, wait: Wait, place: Place, number: int | None = None) -> None:
        """`number`: of the training that waits; None: no training does."""
        self.talk, self.place = talk, place
        server = talk.server
        airspace, clock, flights = server.airspace, server.clock, server.airspace.flights
        staleness = airspace.staleness(flights, server.version)
        limit = server.pacing.max_staleness
        fresh = np.ones(len(flights), dtype=np.bool_) if limit is None else staleness <= limit
        own = flights.dispatch == number

        def decide(flights: Flights) -> tuple[Ints, float]:
            counts = flights.answers & fresh
            return landing(flights.ends, flights.ties, counts=counts, own=own, wait=wait, now=clock.now)

        landed = clock.land(airspace, decide)
        ended = landed.ended
        clock.advance(landed.moment)
        everyone = ended if server.pacing.late_count else np.concatenate([ended, _without(own, ended)])
        # In the order in which they ended; given up on: at the end.
        self.flights = airspace.land(everyone)
        self.staleness, self.given_up = staleness[everyone], np.arange(len(everyone)) >= len(ended)
        #: Why those have no answer whose flights do not say so.
        at = enumerate(ended.tolist()) if landed.problems else ()
        self.problems = {row: landed.problems[position] for row, position in at if position in landed.problems}
        broken = np.zeros(len(everyone), dtype=np.bool_)
        broken[[row for row, problem in self.problems.items() if not problem.gone]] = True
        #: Whose work was wasted, and why.
        self.absent: dict[Outcome, Bools] = {
            "late": self.given_up,
            "failed": ~self.given_up & broken,
            "left": ~self.given_up & ~self.flights.answers & ~broken,
            "stale": ~self.given_up & self.flights.answers & ~fresh[everyone],
        }
        self.arrived: Bools = ~np.logical_or.reduce(list(self.absent.values()))
        self.parts = self._by_request(self.arrived)
        #: Whose answers are there all the same: too old, or seen when the server had just got enough.
        self.came: Bools = self.absent["stale"] | (self.given_up & clock.has_come(self.flights))
        for answered in () if self.arrived.all() else (False, True):
            unwanted = (self.absent["stale"] | self.given_up) & (self.came == answered)
            for part in self._by_request(unwanted):
                clock.give_up(part, answered=answered)
        #: What all of them report.
        waited_for = [] if number is None else [airspace.dispatch(number)]
        asked = [part.order.report for part in self.parts or waited_for]
        names = set.intersection(*({signal.name for signal in report} for report in asked)) if asked else set()
        self.report = tuple(signal for signal in asked[0] if signal.name in names) if asked else ()

    def _by_request(self, which: Bools) -> list[Dispatch]:
        """The requests that some of the flights belong to, each with their clients alone."""
        if not which.any():
            return []
        flights = self.flights if which.all() else self.flights.rows(which)
        return self.talk.server.airspace.parts(flights)

    def carry_out(self, request: Train | None = None) -> Replies:
        """What the clients reported whose updates count; `request`: the training that has waited."""
        aggregation = Aggregation(self, request)
        server, talk, record = self.talk.server, self.talk, aggregation.record
        aggregation.carry_out()
        self._note_absences(record)
        # An answer that is too old to be used tells how long it took, too.
        answered = self.arrived | self.absent["stale"]
        # What was needed, not the difference of two moments: its rounding would make a client late for a deadline
        # that is its own last duration.
        server.history.took(self.flights.clients[answered], self.flights.needed[answered])
        talk.record.trainings.append(record)
        counting = np.array(record.clients, dtype=np.int64)[np.array(record.weights) > 0]
        server.history.trained(counting, talk.round)
        used = among(self.flights.clients, counting) & self.arrived
        server.history.stale(self.flights.clients[used], self.staleness[used])
        if server.clock.passes:
            record.flown = self._flown(record)
        server.airspace.forget()
        replies = aggregation.replies(self.report)
        replies = _with_columns(replies, () if request is None else request.report, talk.population)
        talk.remember(replies, [*record.failed, *record.rejected], trained=True)
        return replies

    def _note_absences(self, record: TrainingRecord) -> None:
        """Who left, was late, or answered to a model that was too old; and what work was wasted."""
        if self.arrived.all():
            return
        server, flights = self.talk.server, self.flights
        now = server.clock.now
        for kind, who in self.absent.items():
            rows = np.flatnonzero(who)
            for row in rows.tolist():
                record_of = record.rejected if kind == "stale" else record.failed
                record_of[int(flights.clients[row])] = self._reason(kind, row)
                if row in self.problems:
                    self.talk.client_failed(Failed(int(flights.clients[row]), self.problems[row].reason))
            for answered in (False, True):
                self._book_in_vain(rows[self.came[rows] == answered], answered=answered)
        late = self.absent["late"]
        server.history.waited(flights.clients[late], now - flights.started[late])

    def _book_in_vain(self, rows: Ints, *, answered: bool) -> None:
        """Wasted trainings; `answered`: their answers have arrived, and count as disclosed."""
        server, flights, books = self.talk.server, self.flights, self.talk.books
        for number in flights.rows(rows).requests:
            some = rows[flights.dispatch[rows] == number]
            spent = np.minimum(flights.ends[some], server.clock.now) - flights.started[some]
            sent = server.airspace.dispatch(number)
            books.wasted(len(some), sent.load, float(spent.sum()), answered=answered)
            if answered:
                books.told(len(some), sent.order.report, server.engine.filters)
                books.released(np.sort(flights.clients[some]), sent.order.report, server.engine.filters)

    def _reason(self, kind: str, row: int) -> str:
        flights = self.flights
        if row in self.problems:
            return self.problems[row].reason
        # In real time it is not known how long it would have needed.
        needed = f" of {flights.needed[row]:.4g} s" if np.isfinite(flights.needed[row]) else " s"
        match kind:
            case "late":
                return f"late: given up on after {self.talk.server.clock.now - flights.started[row]:.4g}{needed}"
            case "left":
                return f"left after {flights.ends[row] - flights.started[row]:.4g}{needed}"
            case _:
                return f"too stale: its model was {self.staleness[row]} aggregations old"

    def _flown(self, record: TrainingRecord) -> Flown:
        flights = self.flights
        outcomes = np.full(len(flights), "failed", dtype=object)
        pairs = list(zip(record.clients, record.weights, strict=True))
        named = {
            "used": [client for client, weight in pairs if weight > 0],
            "left out": [*record.left_out, *(client for client, weight in pairs if weight <= 0)],
            "refused": list(record.rejected),
        }
        for outcome, clients in named.items():
            outcomes[np.isin(flights.clients, clients)] = outcome
        for outcome, who in self.absent.items():
            outcomes[who] = outcome
        return Flown(
            flights.clients.tolist(),
            flights.started.tolist(),
            np.minimum(flights.ends, self.talk.server.clock.now).tolist(),
            self.staleness.tolist(),
            outcomes.tolist(),
        )


def _without(own: Bools, ended: Ints) -> Ints:
    """The positions of those that this training started and that have not ended."""
    waiting = own.copy()
    waiting[ended] = False
    return np.flatnonzero(waiting)


def _with_columns(replies: Replies, wanted: Sequence[Signal], population: Population) -> Replies:
    """The same, with every signal that is wanted: NaN where those that have arrived were not asked for it."""
    missing = [signal for signal in wanted if signal.name not in replies.values]
    if not missing:
        return replies
    empty = {s.name: narrowed(np.full((len(replies), s.width(population)), np.nan)) for s in missing}
    return Replies(replies.clients, {**replies.values, **empty})
