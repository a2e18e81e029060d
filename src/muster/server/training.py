"""One training: who is told to train, which answers count, and what becomes of the global model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregated, Aggregator, StreamingAggregator
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats, Ints
from muster.core.errors import TrainingError
from muster.engine.base import Failed, TrainOrder, narrowed
from muster.selection.base import Train
from muster.server.chain import server_chain
from muster.server.checks import checked_mask
from muster.server.record import TrainingRecord
from muster.signals.base import Replies, Signal
from muster.updates.filters import Tally, passed_through, streams
from muster.updates.table import Updates

if TYPE_CHECKING:
    from muster.server.conversation import Conversation

log = logging.getLogger("muster")


def aggregator_for(request: object, own: Aggregator) -> Aggregator:
    """The run's own, unless a training is to be plain FedAvg: then a fresh one, which has no state."""
    return FedAvg() if isinstance(request, Train) and request.fedavg else own


@dataclass
class Training:
    """Carries out one `Train` request: start, collect, filter, aggregate, settle, book."""

    talk: Conversation
    request: Train
    record: TrainingRecord = field(default_factory=lambda: TrainingRecord([], []))
    #: Numbers of the answers that count, and of those that do not but were computed and sent.
    _valid: list[Updates] = field(default_factory=list)
    _refused: list[Updates] = field(default_factory=list)

    def __post_init__(self) -> None:
        server, talk, request = self.talk.server, self.talk, self.request
        self.aggregator = aggregator_for(request, server.aggregator)
        self.streams = isinstance(self.aggregator, StreamingAggregator) and request.keep is None
        self.order = TrainOrder(
            clients=request.clients,
            parameters=server.parameters,
            place=talk.place(),
            lr=talk.lr,
            report=talk.protected(_distinct((*request.report, *self.aggregator.reports()))),
            broadcast=self.aggregator.broadcast(talk.population.spec),
            keep_all=not self.streams,
            lr_factors=request.lr_factors,
            pull_factors=request.pull_factors,
        )
        #: What every answer goes through.
        self.chain = server_chain(server.guard, server.filters, self.aggregator, server.aggregator.clip_norm)
        self.tally = Tally()

    def carry_out(self) -> Replies:
        """Train, aggregate, and tell the engine whose updates were used; what the clients reported."""
        engine = self.talk.server.engine
        used: Ints = np.empty(0, dtype=np.int64)
        try:
            result = self._streamed() if self.streams else self._whole()
            if result is not None:
                self._take_over(result)
                used = np.sort(result.clients[result.weights > 0])
        finally:
            # Also when the training was broken off: clients must not go on from what nobody has used.
            engine.settle(used, np.setdiff1d(self.order.clients, used))
        self.record.filtered = self.tally.summary()
        self._book()
        return self._replies(self.order.report)

    # --- from answers to the next model ------------------------------------------------------------------

    def _streamed(self) -> Aggregated | None:
        aggregator = self.aggregator
        assert isinstance(aggregator, StreamingAggregator)
        begun = False
        for updates in self._usable():
            with self.talk.server_time():
                if not begun:
                    aggregator.begin(self.talk.server.parameters, self.talk.population.spec)
                    begun = True
                aggregator.add(updates)
        with self.talk.server_time():
            return aggregator.finish() if begun else None

    def _whole(self) -> Aggregated | None:
        server = self.talk.server
        extra: list[Updates] = []
        for updates in self._usable():
            # Movements stay in the engine's matrix; further vectors are overwritten with the next part.
            vectors = {name: rows.copy() for name, rows in updates.extra.items()}
            extra.append(replace(updates.without_vectors(), extra=vectors))
        with self.talk.server_time():
            updates = Updates.concatenated(extra).by_client()
            if self.request.keep is not None and len(updates):
                mask = self.request.keep(self._replies(self.request.report))
                kept = checked_mask(mask, updates.clients, server.selector)
                self.record.left_out, updates = updates.clients[~kept].tolist(), updates.rows(kept)
            if not len(updates):
                return None
            whole = replace(updates, movements=server.engine.matrix(updates.clients))
            return self.aggregator.aggregate(server.parameters, whole, self.talk.population.spec)

    def _take_over(self, result: Aggregated) -> None:
        """Make an aggregation's result the global model."""
        if not np.isfinite(result.parameters).all():
            raise TrainingError(
                f"round {self.talk.round + 1}: {type(self.aggregator).__name__} gave parameters "
                "that are not finite",
                fix="lower aggregation.server_lr; the model of the round before is in the checkpoint",
            )
        self.talk.server.parameters = result.parameters
        ranks = np.argsort(result.clients)
        self.record.clients = result.clients[ranks].tolist()
        self.record.weights = result.weights[ranks].tolist()

    # --- which answers count -----------------------------------------------------------------------------

    def _usable(self) -> Iterator[Updates]:
        """The answers that all filters let through; the others are recorded, and what they cost is noted."""
        server, spec, round = self.talk.server, self.talk.population.spec, self.talk.round + 1
        draws = streams(server.seed, self.order.place.round, self.order.place.iteration)
        for answers in server.engine.train(self.order):
            for observer in server.listeners:
                observer.answered(answers)
            if isinstance(answers, Failed):
                self.record.failed[answers.client] = answers.reason
                log.warning("round %d: client %d failed: %s", round, answers.client, answers.reason)
                continue
            arrived = self._known(answers)
            for name, changed in arrived.changed.items():
                self.tally.book(name, len(arrived), changed=int(changed.sum()))
            result = passed_through(self.chain, arrived, spec, draws, self.tally)
            for client, reason in result.refused.items():
                self.record.rejected[client] = reason
                log.warning("round %d: client %d refused: %s", round, client, reason)
            if result.refused:
                gone = np.isin(arrived.clients, list(result.refused))
                self._refused.append(arrived.rows(gone).without_vectors())
            if len(result.updates):
                if not self.streams:
                    _write_back(result.updates, arrived)
                self._valid.append(result.updates.without_vectors())
                yield result.updates

    def _known(self, answers: Updates) -> Updates:
        """The answers, with what the request says about their clients."""
        request, asked = self.request, self._positions(answers.clients)
        weights, multiplicity, factors = request.weights, request.multiplicity, request.lr_factors
        one = np.ones(len(answers))
        lr_factors = one if factors is None else np.asarray(factors, dtype=np.float64)[asked]
        return replace(
            answers,
            sizes=self.talk.population.sizes[answers.clients],
            multiplicity=one.astype(np.int64) if multiplicity is None else np.asarray(multiplicity)[asked],
            weights=None if weights is None else np.asarray(weights)[asked],
            lr=self.order.lr * lr_factors,
            lr_factors=lr_factors,
        )

    def _positions(self, clients: Ints) -> Ints:
        """Where in the request each of `clients` is named."""
        ranks = np.argsort(self.request.clients)
        return ranks[np.searchsorted(self.request.clients, clients, sorter=ranks)]

    # --- afterwards --------------------------------------------------------------------------------------

    def _replies(self, report: Sequence[Signal]) -> Replies:
        """What clients reported whose updates count, by id."""
        known = Updates.concatenated(self._valid).by_client()
        columns: dict[str, Floats] = {}
        for signal in report:
            empty = np.empty((0, signal.width(self.talk.population)))
            columns[signal.name] = narrowed(known.reports[signal.name] if len(known) else empty)
        return Replies(known.clients, columns)

    def _book(self) -> None:
        talk, server, order, record = self.talk, self.talk.server, self.order, self.record
        talk.record.trainings.append(record)
        # A refused update was computed and sent like any other.
        worked = Updates.concatenated([*self._valid, *self._refused]).by_client()
        talk.books.trained(
            order.clients,
            worked.clients,
            samples=worked.numbers["samples"],
            steps=int(worked.numbers["steps"].sum()),
            report=order.report,
            vectors_down=1 if order.broadcast is None else 2,
            vectors_up=1 + len(server.engine.algorithm.extra),
            filters=server.engine.filters,
        )
        talk.books.released(worked.clients, order.report)
        server.history.trained(np.array(record.clients, dtype=np.int64), talk.round)
        talk.remember(self._replies(order.report), [*record.failed, *record.rejected], trained=True)


def _write_back(filtered: Updates, arrived: Updates) -> None:
    """Put what filters made of rows where the engine's matrix has them: a filter may have worked on a copy."""
    if filtered.movements is not arrived.movements:
        ranks = np.argsort(arrived.clients)
        rows = ranks[np.searchsorted(arrived.clients, filtered.clients, sorter=ranks)]
        arrived.movements[rows] = filtered.movements


def _distinct(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    return tuple({signal.name: signal for signal in signals}.values())
