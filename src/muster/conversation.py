"""One round's exchanges between a selector and the clients: questions, trainings, aggregation, book-keeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregated, StreamingAggregator, Update, Updates
from muster.arrays import Floats, Ints, Vector, plain
from muster.checks import check_plan, check_request, checked_mask
from muster.component import Population
from muster.engine.base import AskOrder, Failed, Place, Trained, TrainOrder, collect_replies
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
            check_request(request, view, self.server.selector, self.server.aggregator)
            replies = self._ask(request) if isinstance(request, Ask) else self._train(request)
            self.exchange += 1

    def _ask(self, request: Ask) -> Replies:
        server = self.server
        signals = self._protected(request.signals)
        order = AskOrder(request.clients, server.parameters, self._place(), self.lr, signals)
        replies, failures = server.engine.ask(order)
        names = [signal.name for signal in signals]
        self.books.asked(request.clients, replies.clients, signals)
        self.books.released(replies.clients, signals)
        self.record.asks.append((names, len(request.clients), len(replies)))
        self._remember(replies, [failure.client for failure in failures], trained=False)
        return replies

    def _train(self, request: Train) -> Replies:
        server, aggregator = self.server, self.server.aggregator
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
        )
        training = TrainingRecord([], [])
        refused: dict[int, Trained] = {}
        answers = _Answers(self._valid(order, training, refused), request, self.population, order.lr)
        result = self._stream(answers) if streaming else self._whole(answers, request, training)
        if result is not None:
            if not np.isfinite(result.parameters).all():
                raise TrainingError(
                    f"round {self.round + 1}: {type(aggregator).__name__} gave parameters that are not finite",
                    fix="lower aggregation.server_lr; the model of the round before is in the checkpoint",
                )
            server.parameters = result.parameters
            ranks = np.argsort(result.clients)
            training.clients, training.weights = result.clients[ranks].tolist(), result.weights[ranks].tolist()
        self._book(order, answers, training, refused)
        self.iteration += 1
        return answers.replies(report)

    def _stream(self, answers: _Answers) -> Aggregated | None:
        aggregator = self.server.aggregator
        assert isinstance(aggregator, StreamingAggregator)
        begun = False
        for answer in answers:
            with self._server_time():
                if not begun:
                    aggregator.begin(self.server.parameters, self.population.spec)
                    begun = True
                aggregator.add(answers.update(answer))
        with self._server_time():
            return aggregator.finish() if begun else None

    def _whole(self, answers: _Answers, request: Train, training: TrainingRecord) -> Aggregated | None:
        for _ in answers:
            pass
        clients = answers.clients
        with self._server_time():
            if request.keep is not None and len(clients):
                kept = checked_mask(request.keep(answers.replies(request.report)), clients, self.server.selector)
                training.left_out, clients = clients[~kept].tolist(), clients[kept]
            if not len(clients):
                return None
            updates = answers.updates(clients, self.server.engine.matrix(clients))
            return self.server.aggregator.aggregate(self.server.parameters, updates, self.population.spec)

    def _valid(
        self, order: TrainOrder, training: TrainingRecord, refused: dict[int, Trained]
    ) -> Iterator[Trained]:
        """The answers that pass the guard; the others are recorded, and what they cost is kept in `refused`."""
        server, spec = self.server, self.population.spec
        for answer in server.engine.train(order):
            for observer in server.observers:
                observer.answered(answer)
            if isinstance(answer, Failed):
                training.failed[answer.client] = answer.reason
                log.warning("round %d: client %d failed: %s", self.round + 1, answer.client, answer.reason)
                continue
            objection = server.guard.objection(answer.movement, spec)
            if objection is not None:
                training.rejected[answer.client] = objection
                refused[answer.client] = _without_vectors(answer)
                log.warning("round %d: client %d refused: %s", self.round + 1, answer.client, objection)
                continue
            if server.aggregator.clip_norm is not None:
                clip(answer.movement, server.aggregator.clip_norm, spec)
            yield answer

    def _book(
        self, order: TrainOrder, answers: _Answers, training: TrainingRecord, refused: dict[int, Trained]
    ) -> None:
        server = self.server
        self.record.trainings.append(training)
        # A refused update was computed and sent like any other.
        worked = answers.facts | refused
        clients = sorted(worked)
        self.books.trained(
            order.clients,
            np.array(clients, dtype=np.int64),
            samples=np.array([worked[client].samples for client in clients], dtype=np.int64),
            steps=sum(answer.steps for answer in worked.values()),
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
        return Place(self.round, self.iteration, self.exchange)

    @contextmanager
    def _server_time(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.server.ledger.current.server_seconds += time.perf_counter() - start


class _Answers:
    """The valid answers to one training request: handed on one by one, and what must be known afterwards."""

    def __init__(self, stream: Iterator[Trained], request: Train, population: Population, lr: float) -> None:
        self._stream, self._population, self._lr = stream, population, lr
        ones = np.ones(len(request.clients), dtype=np.int64)
        multiplicity = request.multiplicity if request.multiplicity is not None else ones
        self._multiplicity = dict(zip(request.clients.tolist(), multiplicity.tolist(), strict=True))
        weights = request.weights
        self._weights = None if weights is None else dict(zip(request.clients.tolist(), weights, strict=True))
        self.facts: dict[int, Trained] = {}
        self._reports: dict[int, dict[str, Floats]] = {}
        self._extra: dict[str, dict[int, Vector]] = {}

    def __iter__(self) -> Iterator[Trained]:
        for answer in self._stream:
            self.facts[answer.client] = _without_vectors(answer)
            self._reports[answer.client] = dict(answer.reports)
            for name, vector in answer.extra.items():
                self._extra.setdefault(name, {})[answer.client] = vector
            yield answer

    @property
    def clients(self) -> Ints:
        return np.array(sorted(self.facts), dtype=np.int64)

    def update(self, answer: Trained) -> Update:
        return Update(
            client=answer.client,
            movement=answer.movement,
            size=int(self._population.sizes[answer.client]),
            steps=answer.steps + answer.credited_steps,
            multiplicity=self._multiplicity[answer.client],
            weight=None if self._weights is None else float(self._weights[answer.client]),
            lr=self._lr,
            extra=answer.extra,
            reports=answer.reports,
        )

    def updates(self, clients: Ints, movements: Vector) -> Updates:
        ids = clients.tolist()
        return Updates(
            clients=clients,
            movements=movements,
            sizes=self._population.sizes[clients],
            steps=np.array([self.facts[c].steps + self.facts[c].credited_steps for c in ids], dtype=np.int64),
            multiplicity=np.array([self._multiplicity[c] for c in ids], dtype=np.int64),
            weights=None if self._weights is None else np.array([self._weights[c] for c in ids]),
            lr=self._lr,
            extra={name: np.stack([rows[c] for c in ids]) for name, rows in self._extra.items()},
            reports=self._columns(ids),
        )

    def replies(self, report: tuple[Signal, ...]) -> Replies:
        return collect_replies(self._reports, report, self._population)

    def _columns(self, ids: list[int]) -> dict[str, Floats]:
        names = list(self._reports[ids[0]]) if ids else []
        return {name: np.stack([self._reports[c][name] for c in ids]) for name in names}


_NOTHING: Vector = np.empty(0, dtype=np.float32)


def _without_vectors(answer: Trained) -> Trained:
    """Only the numbers: the buffers of movement and extra vectors will be reused."""
    return replace(answer, movement=_NOTHING, extra={})


def _is_narrow(rows: Floats) -> bool:
    return rows.ndim == 1 or rows.shape[1] <= WIDEST_KEPT


def _distinct(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    return tuple({signal.name: signal for signal in signals}.values())
