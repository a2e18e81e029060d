"""One round's exchanges between a selector and the clients: questions, trainings, aggregation, book-keeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregated, Aggregator, StreamingAggregator
from muster.aggregation.fedavg import FedAvg
from muster.answers import Answers
from muster.arrays import Floats, Ints, Vector, plain
from muster.checks import check_plan, check_request, checked_mask
from muster.component import Population
from muster.engine.base import AskOrder, Failed, Place, TrainedSlice, TrainOrder
from muster.errors import TrainingError
from muster.guard import clip
from muster.ledger import Bookkeeper
from muster.record import WIDEST_KEPT, Report, RoundRecord, TrainingRecord
from muster.selection.base import Ask, Train
from muster.signals.base import Replies, Signal

if TYPE_CHECKING:
    from muster.server import Server

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
                with self._server_time():
                    request = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration:
                self.record.notes = plain(view.notes)
                return
            server = self.server
            check_request(request, view, server.selector, self._aggregator(request), server.engine.algorithm)
            replies = self._ask(request) if isinstance(request, Ask) else self._train(request)
            self.exchange += 1

    def _ask(self, request: Ask) -> Replies:
        server = self.server
        signals = self._protected(request.signals)
        parameters = server.parameters if request.parameters is None else request.parameters
        order = AskOrder(request.clients, parameters, self._place(), self.lr, signals)
        replies, failures = server.engine.ask(order)
        names = [signal.name for signal in signals]
        self.books.asked(request.clients, replies.clients, signals)
        self.books.released(replies.clients, signals)
        self.record.asks.append((names, len(request.clients), len(replies)))
        self._remember(replies, [failure.client for failure in failures], trained=False)
        return replies

    def _train(self, request: Train) -> Replies:
        server, aggregator = self.server, self._aggregator(request)
        report = self._protected(_distinct((*request.report, *aggregator.reports())))
        streaming = isinstance(aggregator, StreamingAggregator) and request.keep is None
        order = TrainOrder(
            clients=request.clients,
            parameters=server.parameters,
            place=self._place(),
            lr=self.lr,
            report=report,
            broadcast=aggregator.broadcast(self.population.spec),
            keep_all=not streaming,
            lr_factors=request.lr_factors,
            pull_factors=request.pull_factors,
        )
        training = TrainingRecord([], [])
        answers = Answers(request, self.population, order.lr)
        stream = self._valid(order, training, answers)
        used: Ints = np.empty(0, dtype=np.int64)
        try:
            result = (
                self._stream(stream, answers, aggregator)
                if streaming
                else self._whole(stream, answers, request, training, aggregator)
            )
            if result is not None:
                self._take_over(result, training)
                used = np.sort(result.clients[result.weights > 0])
        finally:
            # Also when the training was broken off: clients must not go on from what nobody has used.
            server.engine.settle(used, np.setdiff1d(order.clients, used))
        self._book(order, answers, training)
        self.iteration += 1
        return answers.replies(report)

    def _take_over(self, result: Aggregated, training: TrainingRecord) -> None:
        """Make an aggregation's result the global model."""
        if not np.isfinite(result.parameters).all():
            raise TrainingError(
                f"round {self.round + 1}: {type(self.server.aggregator).__name__} gave parameters "
                "that are not finite",
                fix="lower aggregation.server_lr; the model of the round before is in the checkpoint",
            )
        self.server.parameters = result.parameters
        ranks = np.argsort(result.clients)
        training.clients, training.weights = result.clients[ranks].tolist(), result.weights[ranks].tolist()

    def _aggregator(self, request: Ask | Train) -> Aggregator:
        """The run's own, unless a training is to be plain FedAvg: then a fresh one, which has no state."""
        return FedAvg() if isinstance(request, Train) and request.fedavg else self.server.aggregator

    def _stream(
        self, stream: Iterator[TrainedSlice], answers: Answers, aggregator: Aggregator
    ) -> Aggregated | None:
        assert isinstance(aggregator, StreamingAggregator)
        begun = False
        for part in stream:
            with self._server_time():
                if not begun:
                    aggregator.begin(self.server.parameters, self.population.spec)
                    begun = True
                aggregator.add_all(answers.updates_of(part))
        with self._server_time():
            return aggregator.finish() if begun else None

    def _whole(
        self,
        stream: Iterator[TrainedSlice],
        answers: Answers,
        request: Train,
        training: TrainingRecord,
        aggregator: Aggregator,
    ) -> Aggregated | None:
        extra: dict[int, dict[str, Vector]] = {}
        for part in stream:
            extra |= {answer.client: dict(answer.extra) for answer in part if answer.extra}
        clients = answers.clients
        with self._server_time():
            if request.keep is not None and len(clients):
                kept = checked_mask(request.keep(answers.replies(request.report)), clients, self.server.selector)
                training.left_out, clients = clients[~kept].tolist(), clients[kept]
            if not len(clients):
                return None
            updates = answers.updates(clients, self.server.engine.matrix(clients), extra)
            return aggregator.aggregate(self.server.parameters, updates, self.population.spec)

    def _valid(self, order: TrainOrder, training: TrainingRecord, answers: Answers) -> Iterator[TrainedSlice]:
        """The answers that may be used; the others are recorded, and what they cost is noted."""
        server, spec = self.server, self.population.spec
        for part in server.engine.train_slices(order):
            for observer in server.listeners:
                for answer in (part,) if isinstance(part, Failed) else part:
                    observer.answered(answer)
            if isinstance(part, Failed):
                training.failed[part.client] = part.reason
                log.warning("round %d: client %d failed: %s", self.round + 1, part.client, part.reason)
                continue
            passed = np.ones(len(part.clients), dtype=np.bool_)
            for row, objection in self._objections(part, answers).items():
                client, passed[row] = int(part.clients[row]), False
                training.rejected[client] = objection
                log.warning("round %d: client %d refused: %s", self.round + 1, client, objection)
            if server.aggregator.clip_norm is not None:
                for row in np.flatnonzero(passed).tolist():
                    clip(part.movements[row], server.aggregator.clip_norm, spec)
            if passed.all():
                answers.note(part)
                yield part
                continue
            answers.note_refused(part.some(~passed))
            if passed.any():
                answers.note(some := part.some(passed))
                yield some

    def _objections(self, part: TrainedSlice, answers: Answers) -> dict[int, str]:
        """Why rows may not be used: the guard's reason first, then the aggregator's."""
        found = self.server.guard.objections(part.movements, self.population.spec)
        return self.server.aggregator.objections(answers.updates_of(part)) | found

    def _book(self, order: TrainOrder, answers: Answers, training: TrainingRecord) -> None:
        server = self.server
        self.record.trainings.append(training)
        # A refused update was computed and sent like any other.
        worked = answers.worked
        self.books.trained(
            order.clients,
            worked.clients,
            samples=worked.samples,
            steps=int(worked.steps.sum()),
            report=order.report,
            vectors_down=1 if order.broadcast is None else 2,
            vectors_up=1 + len(server.engine.algorithm.extra),
        )
        self.books.released(np.array([*answers.clients, *training.rejected], dtype=np.int64), order.report)
        server.history.trained(np.array(training.clients, dtype=np.int64), self.round)
        self._remember(answers.replies(order.report), [*training.failed, *training.rejected], trained=True)

    def _remember(self, replies: Replies, failed: list[int], *, trained: bool) -> None:
        kept = {name: rows.astype(np.float32) for name, rows in replies.values.items() if _is_narrow(rows)}
        if kept:
            self.record.reports.append(Report(self.exchange, trained, replies.clients, kept))
        for name, values in replies.values.items():
            self.server.history.reported(name, replies.clients, values)
            broken = int((~np.isfinite(values.reshape(len(values), -1))).any(axis=1).sum()) if len(values) else 0
            if broken:
                log.warning("round %d: %d clients sent a '%s' that is no number", self.round + 1, broken, name)
        self.server.history.failed(np.array(failed, dtype=np.int64))

    def _protected(self, signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
        privacy = self.server.privacy
        return signals if privacy is None else privacy.protect(signals, self.population.classes)

    def _place(self) -> Place:
        return Place(self.round, self.iteration, self.exchange, self.population.rounds)

    @contextmanager
    def _server_time(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.server.ledger.current.server_seconds += time.perf_counter() - start


def _is_narrow(rows: Floats) -> bool:
    return rows.ndim == 1 or rows.shape[1] <= WIDEST_KEPT


def _distinct(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    return tuple({signal.name: signal for signal in signals}.values())
