"""One round's exchanges between a selector and the clients: questions, trainings, aggregation, bookkeeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from muster.core.arrays import Floats, Ints, plain
from muster.core.component import Population, grown
from muster.core.randomness import generator
from muster.engine.base import AskOrder, Failed, narrowed
from muster.engine.task import Place
from muster.selection.base import Ask, Train, View
from muster.server.asynchrony import check_ask_fits, check_training_fits
from muster.server.checks import check_plan, check_request
from muster.server.door import admitted, told
from muster.server.flights import part_of
from muster.server.landing import Landing
from muster.server.ledger import Bookkeeper
from muster.server.record import WIDEST_KEPT, Report, RoundRecord
from muster.server.sending import aggregator_for, dispatch
from muster.signals.base import Replies, Signal
from muster.training.context import PROBE
from muster.world.clock import Errand

if TYPE_CHECKING:
    from muster.server.loop import Server

log = logging.getLogger("muster")


class Conversation:
    """One round's exchanges between selector and clients."""

    def __init__(
        self,
        server: Server,
        population: Population,
        round: int,
        *,
        books: Bookkeeper,
        record: RoundRecord,
    ) -> None:
        self.server, self.population, self.books, self.record = server, population, books, record
        self.round, self.iteration, self.exchange = round, 0, 0
        self.lr = server.engine.training.learning_rate(round, population.rounds, server.losses)
        #: Samples of its training that are done with a probe for each client already, in this round.
        self._probed: Ints = np.zeros(0, dtype=np.int64)
        #: No client counts as more samples than this in this round; None: all that are stated count.
        self._largest_count = server.limits.largest_count(server.engine.population.sizes)
        #: Whether the server has waited for answers in this round.
        self._landed = False

    def hold(self) -> None:
        """Carry out requests until the selector makes no more and the server has waited for the answers."""
        server = self.server
        self._wait_for_somebody()
        cohorts = 0
        while not self._landed:
            view, before = server.view(self.population, self.round, cohorts), len(server.airspace)
            if before and not (self._room() and len(view.available)):
                break
            self._follow(view)
            cohorts += 1
            if len(server.airspace) <= before:
                break
        if not self._landed and len(server.airspace):
            self._land(None, None)

    def _room(self) -> bool:
        """Whether one more cohort may start: as many clients as the last one had, or the usual number."""
        airspace, usual = self.server.airspace, getattr(self.server.selector, "clients_per_round", None) or 0
        return self.server.pacing.has_room(len(airspace), max(airspace.cohort, usual))

    def _that_fit(self, request: Train) -> Train:
        """As much of a cohort as there is room for, at random: a method may choose more clients than before."""
        server, chosen, under_way = self.server, len(request.clients), len(self.server.airspace)
        if not server.pacing.fills or server.pacing.has_room(under_way, chosen):
            return request
        room = next(count for count in range(chosen, -1, -1) if server.pacing.has_room(under_way, count))
        lots = generator(server.seed, "room", self.round, self.exchange).permutation(chosen)[:room]
        self.record.events.append(f"{room} of {chosen} chosen clients started: {under_way} were under way already")
        return part_of(request, np.sort(request.clients[lots]))

    def _wait_for_somebody(self) -> None:
        """Where no client is there and none is working, the clock advances until one appears."""
        server, clients = self.server, self.population.clients
        if len(server.airspace):
            return
        moment = server.clock.next_arrival(clients)
        if moment > server.clock.now:
            self.record.events.append(f"no client was there for {moment - server.clock.now:,.0f} s")
            server.clock.advance(moment)

    def _follow(self, view: View) -> None:
        """Carry out the requests of one plan."""
        server = self.server
        plan = server.selector.round(view)
        check_plan(plan, server.selector)
        replies: Replies | None = None
        trained = False
        while True:
            try:
                with self.server_time():
                    request = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration:
                self.record.notes |= plain(view.notes)
                return
            aggregator = aggregator_for(request, server.aggregator)
            check_request(request, view, server.selector, aggregator, server.engine)
            for observer in server.observers:
                observer.requested(request, self.round)
            if isinstance(request, Ask):
                check_ask_fits(request, server.selector, server.pacing)
                replies = self._ask(request)
            else:
                check_training_fits(request, server.selector, server.pacing, first=not trained)
                trained = True
                replies = self._train(request)
            self.exchange += 1

    def _train(self, request: Train) -> Replies:
        server, place = self.server, self.place()
        request = self._that_fit(request)
        number = dispatch(self, request)
        self.iteration += 1
        if server.pacing.fills and self._room() and self._somebody_is_idle():
            return no_replies(server.airspace.dispatch(number).order.report, self.population)
        return self._land(request, number, place)

    def _land(self, request: Train | None, number: int | None, place: Place | None = None) -> Replies:
        """Wait as the pacing says, and make the next model."""
        self._landed = True
        server, airspace = self.server, self.server.airspace
        started = airspace.cohort if number is None else len(airspace.dispatch(number).order.clients)
        under_way = server.history.durations[airspace.flights.clients]
        wait = server.pacing.wait_for(started, self._durations(), under_way)
        # No client has just started: wait for those under way.
        if not started or number is None:
            wait = replace(wait, answers=max(wait.answers, 1), own=False)
        place = place or Place(self.round, max(self.iteration - 1, 0), self.exchange, self.population.rounds)
        return Landing(self, wait, place, number).carry_out(request)

    def _durations(self) -> Floats:
        """Seconds of all clients' last trainings, for a pacing that needs them: there may be millions."""
        if not self.server.pacing.looks_at_durations:
            return np.empty(0)
        history = self.server.history
        durations = np.where(history.given_up, np.inf, history.durations)
        return durations[~np.isnan(durations)]

    def _somebody_is_idle(self) -> bool:
        return len(self.server.reachable(self.population, self.round)) > 0

    def _ask(self, request: Ask) -> Replies:
        server, clients, exchange = self.server, request.clients, (self.round, self.exchange)
        signals = self.protected(request.signals)
        parameters = server.parameters if request.parameters is None else request.parameters
        errand = Errand(clients, self.books.passes(clients, signals), *self.books.question(signals), exchange)
        trips = server.clock.asking(errand)
        there = clients[trips.answers]
        said, failures = server.engine.ask(AskOrder(there, parameters, self.place(), self.lr, signals))
        failed = [*clients[~trips.answers].tolist(), *(failure.client for failure in failures)]
        names = [signal.name for signal in signals]
        # A client that was not believed has still measured and disclosed.
        self.books.asked(clients, said.clients, signals)
        self.books.released(said.clients, signals)
        replies, refused = admitted(said, signals, self.population)
        self.record.events += told(refused)
        replies = server.limits.believed(replies, signals)
        self.record.asks.append((names, len(clients), len(replies)))
        failed += refused
        # A client that was not believed counts as silent, also in a replay.
        server.clock.asked(trips, failed)
        self.remember(replies, failed, trained=False)
        self._note_probes(replies.clients, signals)
        return replies

    def _note_probes(self, clients: Ints, signals: tuple[Signal, ...]) -> None:
        probes = tuple(signal for signal in signals if PROBE in signal.client_state)
        if probes:
            self._probed = grown(self._probed, self.population.clients, 0)
            self._probed[clients] = self.books.spared(clients, probes)

    def probed(self, clients: Ints) -> Ints:
        """Samples of its training that each client has done already."""
        return self._probed[clients] if len(self._probed) else np.zeros(len(clients), dtype=np.int64)

    def probes_used(self, clients: Ints) -> None:
        """These clients train now: a probe is credited to one training."""
        if len(self._probed):
            self._probed[clients] = 0

    def remember(self, replies: Replies, failed: list[int], *, trained: bool) -> None:
        kept = {name: rows.astype(np.float32) for name, rows in replies.values.items() if _is_narrow(rows)}
        if kept:
            self.record.reports.append(Report(self.exchange, trained, replies.clients, kept))
        for name, values in replies.values.items():
            self.server.history.reported(name, replies.clients, values)
        self.server.history.failed(np.array(failed, dtype=np.int64))

    def counted_sizes(self, clients: Ints) -> Ints:
        """The number of samples that these clients count as now: a federation may learn it from an answer."""
        sizes = self.server.engine.population.sizes[clients]
        return sizes if self._largest_count is None else np.minimum(sizes, self._largest_count)

    def sizes_that_do_not_count(self, clients: Ints) -> list[str]:
        """Who of these states more samples than count, in words."""
        if self._largest_count is None:
            return []
        stated, counted = self.server.engine.population.sizes[clients], self.counted_sizes(clients)
        return [
            f"client {clients[row]} states {stated[row]:,} samples and counts as {counted[row]:,}"
            for row in np.flatnonzero(counted < stated).tolist()
        ]

    def client_failed(self, failure: Failed) -> None:
        """Tell all observers that a client gave no usable answer to a training."""
        for observer in self.server.listeners:
            observer.answered(failure)
        log.warning("round %d: client %d failed: %s", self.round + 1, failure.client, failure.reason)

    def protected(self, signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
        privacy = self.server.privacy
        return signals if privacy is None else privacy.protect(signals, self.population.classes)

    def place(self) -> Place:
        return Place(self.round, self.iteration, self.exchange, self.population.rounds)

    @contextmanager
    def server_time(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.server.ledger.current.server_seconds += time.perf_counter() - start


def _is_narrow(rows: Floats) -> bool:
    return rows.ndim == 1 or rows.shape[1] <= WIDEST_KEPT


def no_replies(report: Sequence[Signal], population: Population) -> Replies:
    """Empty replies."""
    columns = {signal.name: narrowed(np.empty((0, signal.width(population)))) for signal in report}
    return Replies(np.empty(0, dtype=np.int64), columns)
