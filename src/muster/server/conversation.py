"""One round's exchanges between a selector and the clients: questions, trainings, aggregation, book-keeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from muster.core.arrays import Floats, plain
from muster.core.component import Population
from muster.engine.base import AskOrder
from muster.engine.task import Place
from muster.selection.base import Ask
from muster.server.checks import check_plan, check_request
from muster.server.ledger import Bookkeeper
from muster.server.record import WIDEST_KEPT, Report, RoundRecord
from muster.server.training import Training, aggregator_for
from muster.signals.base import Replies, Signal

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

    def hold(self) -> None:
        """Carry out requests until the selector has no more."""
        view = self.server.view(self.population, self.round)
        plan = self.server.selector.round(view)
        check_plan(plan, self.server.selector)
        replies: Replies | None = None
        while True:
            try:
                with self.server_time():
                    request = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration:
                self.record.notes = plain(view.notes)
                return
            server = self.server
            aggregator = aggregator_for(request, server.aggregator)
            check_request(request, view, server.selector, aggregator, server.engine)
            for observer in server.observers:
                observer.requested(request, self.round)
            if isinstance(request, Ask):
                replies = self._ask(request)
            else:
                replies = Training(self, request).carry_out()
                self.iteration += 1
            self.exchange += 1

    def _ask(self, request: Ask) -> Replies:
        server = self.server
        signals = self.protected(request.signals)
        parameters = server.parameters if request.parameters is None else request.parameters
        order = AskOrder(request.clients, parameters, self.place(), self.lr, signals)
        replies, failures = server.engine.ask(order)
        names = [signal.name for signal in signals]
        self.books.asked(request.clients, replies.clients, signals)
        self.books.released(replies.clients, signals)
        self.record.asks.append((names, len(request.clients), len(replies)))
        self.remember(replies, [failure.client for failure in failures], trained=False)
        return replies

    def remember(self, replies: Replies, failed: list[int], *, trained: bool) -> None:
        kept = {name: rows.astype(np.float32) for name, rows in replies.values.items() if _is_narrow(rows)}
        if kept:
            self.record.reports.append(Report(self.exchange, trained, replies.clients, kept))
        for name, values in replies.values.items():
            self.server.history.reported(name, replies.clients, values)
            broken = int((~np.isfinite(values.reshape(len(values), -1))).any(axis=1).sum()) if len(values) else 0
            if broken:
                log.warning("round %d: %d clients sent a '%s' that is no number", self.round + 1, broken, name)
        self.server.history.failed(np.array(failed, dtype=np.int64))

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
