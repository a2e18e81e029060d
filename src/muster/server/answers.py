"""The answers to one training request: what must be known of them when their vectors are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from muster.aggregation.base import Updates
from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.engine.base import TrainedSlice, narrowed
from muster.selection.base import Train
from muster.signals.base import Replies, Signal


class Answers:
    """Numbers of all answers, and what the request says about their clients."""

    def __init__(self, request: Train, population: Population, lr: float) -> None:
        self._request, self._population, self._lr = request, population, lr
        self._ranks = np.argsort(request.clients)
        self._valid: list[TrainedSlice] = []
        self._refused: list[TrainedSlice] = []

    def note(self, part: TrainedSlice) -> None:
        """These updates may be used."""
        self._valid.append(part.without_vectors())

    def note_refused(self, part: TrainedSlice) -> None:
        """These may not, but they were computed and sent."""
        self._refused.append(part.without_vectors())

    @property
    def clients(self) -> Ints:
        """Whose updates may be used, ascending."""
        return _merged(self._valid).clients

    @property
    def worked(self) -> TrainedSlice:
        """Everybody who has trained, refused or not, by id."""
        return _merged([replace(part, reports={}) for part in (*self._valid, *self._refused)])

    def updates_of(self, part: TrainedSlice) -> Updates:
        """Updates for an aggregator, in the order of the answers."""
        asked = self._positions(part.clients)
        ones = np.ones(len(self._ranks), dtype=np.int64)
        multiplicity = np.asarray(ones if self._request.multiplicity is None else self._request.multiplicity)
        weights, factors = self._request.weights, self._request.lr_factors
        return Updates(
            clients=part.clients,
            movements=part.movements,
            sizes=self._population.sizes[part.clients],
            steps=part.steps + part.credited_steps,
            multiplicity=multiplicity[asked],
            weights=None if weights is None else np.asarray(weights)[asked],
            lr=self._lr,
            lr_factors=None if factors is None else np.asarray(factors)[asked],
            extra=part.extra,
            reports=part.reports,
        )

    def updates(self, clients: Ints, movements: Vector, extra: Mapping[int, Mapping[str, Vector]]) -> Updates:
        """The updates of `clients` (ascending) whose movements are the rows of a matrix."""
        known = _merged(self._valid)
        part = known.some(np.searchsorted(known.clients, clients))
        names = list(extra[int(clients[0])]) if extra else []
        vectors = {name: np.stack([extra[client][name] for client in clients.tolist()]) for name in names}
        return self.updates_of(
            TrainedSlice(
                clients=clients,
                movements=movements,
                steps=part.steps,
                samples=part.samples,
                credited_steps=part.credited_steps,
                reports=part.reports,
                extra=vectors,
            )
        )

    def replies(self, report: tuple[Signal, ...]) -> Replies:
        """What clients reported, by id."""
        known = _merged(self._valid)
        columns: dict[str, Floats] = {}
        for signal in report:
            empty = np.empty((0, signal.width(self._population)))
            columns[signal.name] = narrowed(known.reports[signal.name] if len(known.clients) else empty)
        return Replies(known.clients, columns)

    def _positions(self, clients: Ints) -> Ints:
        """Where in the request each of `clients` is named."""
        return self._ranks[np.searchsorted(self._request.clients, clients, sorter=self._ranks)]


def _merged(parts: list[TrainedSlice]) -> TrainedSlice:
    """All rows, by id."""
    nobody = np.empty(0, dtype=np.int64)
    if not parts:
        nothing: Vector = np.empty((0, 0), dtype=np.float32)
        return TrainedSlice(nobody, nothing, nobody, nobody, nobody, {}, {})
    ranks = np.argsort(np.concatenate([part.clients for part in parts]))
    return TrainedSlice(
        clients=np.concatenate([part.clients for part in parts])[ranks],
        movements=np.concatenate([part.movements for part in parts])[ranks],
        steps=np.concatenate([part.steps for part in parts])[ranks],
        samples=np.concatenate([part.samples for part in parts])[ranks],
        credited_steps=np.concatenate([part.credited_steps for part in parts])[ranks],
        reports={name: np.concatenate([part.reports[name] for part in parts])[ranks] for name in parts[0].reports},
        extra={},
    )
