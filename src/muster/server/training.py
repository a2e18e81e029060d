"""One training: which of the answers that have arrived count, and what becomes of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregated, StreamingAggregator, buffers_of
from muster.core.arrays import Floats, Ints, Vector, among
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.core.randomness import generator
from muster.engine.base import Failed, narrowed
from muster.selection.base import Train
from muster.server.chain import server_chain
from muster.server.checks import checked_mask
from muster.server.door import BelievableReports, BelievableWork, PossibleStatistics
from muster.server.flights import Dispatch, positions
from muster.server.record import TrainingRecord
from muster.server.sending import aggregator_for
from muster.signals.base import Replies, Signal
from muster.signals.progress import LocalProgress
from muster.training.context import Trainings
from muster.updates.filters import Draws, Filter, Tally, named, passed_through, streams, working
from muster.updates.table import Updates

if TYPE_CHECKING:
    from muster.server.landing import Landing

log = logging.getLogger("muster")

_NOBODY: Ints = np.empty(0, dtype=np.int64)


@dataclass
class Aggregation:
    """Carries out the trainings whose answers have arrived: start, collect, filter, aggregate, settle, record."""

    landed: Landing
    #: The training that waited, and may want to choose among the updates.
    request: Train | None
    record: TrainingRecord = field(default_factory=lambda: TrainingRecord([], []))
    #: Numbers of the answers that count, and of those that do not but were computed and sent.
    _valid: list[Updates] = field(default_factory=list)
    _refused: list[Updates] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.talk, server = self.landed.talk, self.landed.talk.server
        self.keep = None if self.request is None else self.request.keep
        self.aggregator = aggregator_for(self.request, server.aggregator)
        #: Attackers that know all answers act before anything else sees one.
        self.collusions = working([step for step in named(server.filters) if step[1].whole], self.talk.round)
        whole = self.keep is not None or self.aggregator.max_weight is not None
        self.streams = isinstance(self.aggregator, StreamingAggregator) and not whole
        self.parts = self.landed.parts
        self.clients: Ints = np.sort(self.landed.flights.clients[self.landed.arrived])
        self.known = self._what_is_known()
        #: What every answer goes through.
        own = [step for step in server.filters if not step.whole and self.talk.round + 1 >= step.from_round]
        self.chain = server_chain(server.guard, self._looks(), own, self.aggregator, server.aggregator.clip_norm)
        self.tally = Tally()

    def carry_out(self) -> None:
        """Train, aggregate, and tell the engine whose updates were used."""
        engine = self.talk.server.engine
        used = _NOBODY
        if len(self.clients):
            try:
                result = self._streamed() if self.streams else self._whole()
                if result is not None:
                    self._take_over(result)
                    used = np.sort(result.clients[result.weights > 0])
            finally:
                # Also when the training was cut short: clients must not continue from what was never used.
                engine.settle(used, self.clients[~among(self.clients, used)])
        self.record.filtered = self.tally.summary()
        self._book()

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
        # The engine keeps the movements of one order. Those of several are put together here.
        matrix = (
            None if self._in_engine else np.empty((len(self.clients), self.talk.population.spec.size), np.float32)
        )
        numbers: list[Updates] = []
        for updates in self._usable():
            if matrix is not None:
                matrix[np.searchsorted(self.clients, updates.clients)] = updates.movements
            # Movements stay in the matrix; further vectors are overwritten with the next part.
            vectors = {name: rows.copy() for name, rows in updates.extra.items()}
            numbers.append(replace(updates.without_vectors(), extra=vectors))
        with self.talk.server_time():
            updates = Updates.concatenated(numbers).by_client()
            if self.keep is not None and self.request is not None and len(updates):
                mask = self.keep(self.replies(self.request.report))
                kept = checked_mask(mask, updates.clients, server.selector)
                self.record.left_out, updates = updates.clients[~kept].tolist(), updates.rows(kept)
            if not len(updates):
                return None
            if matrix is None:
                movements = server.engine.matrix(updates.clients)
            elif len(updates) == len(matrix):
                movements = matrix
            else:
                movements = matrix[np.searchsorted(self.clients, updates.clients)]
            whole = replace(updates, movements=movements)
            if self.aggregator.needs_root:
                own = server.engine.root_movement(server.parameters, self.landed.place, self.talk.lr)
                self.aggregator.trust(own)
            if self.aggregator.draws:
                # The number of aggregations too: a round may have several.
                self.aggregator.draw_from(generator(server.seed, "aggregation", self.talk.round, server.version))
            return self.aggregator.aggregate(server.parameters, whole, self.talk.population.spec)

    @property
    def _in_engine(self) -> bool:
        """Whether the engine keeps all movements until they are aggregated."""
        return not self.streams and len(self.parts) == 1 and not self.collusions

    def _take_over(self, result: Aggregated) -> None:
        """Make an aggregation's result the global model."""
        if not np.isfinite(result.parameters).all():
            raise TrainingError(
                f"round {self.talk.round + 1}: {type(self.aggregator).__name__} returned parameters "
                "that are not finite",
                fix="lower aggregation.server_lr; the model of the round before is in the checkpoint",
            )
        server = self.talk.server
        server.parameters = result.parameters
        server.version += 1
        ranks = np.argsort(result.clients)
        self.record.clients = result.clients[ranks].tolist()
        self.record.weights = result.weights[ranks].tolist()
        self.talk.record.events += self.talk.sizes_that_do_not_count(result.clients[ranks])

    # --- which answers count -----------------------------------------------------------------------------

    def _usable(self) -> Iterator[Updates]:
        """The answers that all filters let through; the others are recorded, and what they cost is noted."""
        server, spec, round = self.talk.server, self.talk.population.spec, self.talk.round + 1
        draws = streams(server.seed, self.landed.place.round, self.landed.place.iteration)
        for answers in self._plotted(draws) if self.collusions else self._answers():
            if isinstance(answers, Failed):
                self.record.failed[answers.client] = answers.reason
                self.talk.client_failed(answers)
                continue
            for observer in server.listeners:
                observer.answered(answers)
            # Sizes are read now: a federation may learn how many samples a client has from its answer. What the
            # client has stated since it got the order was not checked against this work.
            sizes = np.minimum(self.talk.counted_sizes(answers.clients), answers.sizes)
            arrived = answers.completed(self.known, sizes=sizes, reports=[s.name for s in self.landed.report])
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
                usable = _statistics_from_current(result.updates, spec)
                if self._in_engine:
                    _write_back(usable, arrived)
                self._valid.append(usable.without_vectors())
                yield usable

    def _plotted(self, draws: Callable[[str], Draws]) -> Iterator[Updates | Failed]:
        """All answers as one table, after attackers that know all of them have changed theirs."""
        parts = list[Updates]()
        for answers in self._answers():
            if isinstance(answers, Failed):
                yield answers
            else:
                vectors = {name: rows.copy() for name, rows in answers.extra.items()}
                parts.append(replace(answers, movements=answers.movements.copy(), extra=vectors))
        if not parts:
            return
        spec, table = self.talk.population.spec, Updates.concatenated(parts).by_client()
        plotted = passed_through(self.collusions, table, spec, draws, self.tally).updates
        yield replace(plotted, reports=self._seen_in_updates(plotted))

    def _seen_in_updates(self, answers: Updates) -> dict[str, Floats]:
        """The reports; those that the server computes from updates are computed from what it received."""
        known = self.known.rows(np.searchsorted(self.clients, answers.clients))
        nothing = np.full(len(answers), np.nan)
        trainings = Trainings(
            spec=self.talk.population.spec,
            movements=answers.movements,
            lr=known.lr,
            steps=answers.numbers["steps"],
            samples=answers.numbers["samples"],
            mean_loss=nothing,
            mean_squared_loss=nothing,
            progress=nothing,
        )
        reports = dict(answers.reports)
        for signal in self.landed.report:
            if signal.in_update and (seen := signal.measure_trained(trainings)) is not None:
                reports[signal.name] = seen
        return reports

    def _answers(self) -> Iterator[Updates | Failed]:
        server, orders = self.talk.server, [part.order for part in self.parts]
        if len(orders) == 1:
            orders = [replace(orders[0], keep_all=self._in_engine)]
        return server.clock.collect(server.engine, orders)

    def _what_is_known(self) -> Updates:
        """What the server knows about the answers before they arrive: a table without vectors, by id."""
        server, landed, clients = self.talk.server, self.landed, self.clients
        by_id = np.flatnonzero(landed.arrived)[np.argsort(landed.flights.clients[landed.arrived])]
        parts = [self._of_request(part) for part in self.parts]
        joined = Updates.concatenated(parts).by_client() if parts else Updates.concatenated([])
        staleness = landed.staleness[by_id]
        return replace(
            joined,
            clients=clients,
            version=server.version - staleness,
            staleness=staleness,
            arrived=landed.flights.ends[by_id],
            drifts=self._drifts(),
        )

    def _of_request(self, part: Dispatch) -> Updates:
        """What a request says about its clients."""
        request, clients = part.request, part.order.clients
        if len({other.request.weights is None for other in self.parts}) > 1:
            raise TrainingError(
                "some of the answers come with weights of the selection and others without: they cannot be mixed",
                fix="use a selection that always gives weights, or one that never does",
            )
        one = np.ones(len(clients))
        factors = one if request.lr_factors is None else np.asarray(request.lr_factors, dtype=np.float64)
        multiplicity = one.astype(np.int64) if request.multiplicity is None else np.asarray(request.multiplicity)
        return Updates(
            clients,
            self.talk.counted_sizes(clients),
            np.empty((len(clients), 0), dtype=np.float32),
            {},
            multiplicity=multiplicity,
            weights=None if request.weights is None else np.asarray(request.weights),
            lr=part.order.lr * factors,
            lr_factors=factors,
        )

    def _looks(self) -> Iterator[Filter]:
        """The checks of what answers hold beside the trained parameters, where they hold anything."""
        population, report, engine = self.talk.population, self.landed.report, self.talk.server.engine
        if population.spec.trainable.stop < population.spec.size:
            yield PossibleStatistics({part.version: part.order.parameters for part in self.parts})
        if report:
            yield BelievableReports(report, population)
        if engine.trains_as_told and any(signal.name == LocalProgress.name for signal in report):
            orders = [part.order for part in self.parts]
            yield BelievableWork(
                engine.training,
                np.concatenate([_NOBODY, *(order.clients for order in orders)]),
                engine.algorithm.pull
                * np.concatenate([_NOBODY, *(order.pulls(order.clients) for order in orders)]),
            )

    def _drifts(self) -> dict[int, Vector]:
        now = self.talk.server.parameters
        old = {
            part.version: part.order.parameters for part in self.parts if part.version != self.talk.server.version
        }
        return {version: parameters - now for version, parameters in old.items()}

    # --- afterwards --------------------------------------------------------------------------------------

    def replies(self, report: Sequence[Signal]) -> Replies:
        """What clients reported whose updates count, by id."""
        clients = np.concatenate([_NOBODY, *(part.clients for part in self._valid)])
        by_id = np.argsort(clients)
        columns: dict[str, Floats] = {}
        for signal in report:
            rows = [part.reports[signal.name] for part in self._valid]
            empty = np.empty((0, signal.width(self.talk.population)))
            columns[signal.name] = narrowed(np.concatenate(rows)[by_id] if rows else empty)
        return self.talk.server.limits.believed(Replies(clients[by_id], columns), tuple(report))

    def _book(self) -> None:
        books, filters = self.talk.books, self.talk.server.engine.filters
        # A refused update was computed and sent like any other.
        worked = (*self._valid, *self._refused)
        clients = np.concatenate([_NOBODY, *(part.clients for part in worked)])
        samples = np.concatenate([_NOBODY, *(part.numbers["samples"] for part in worked)])
        steps = np.concatenate([_NOBODY, *(part.numbers["steps"] for part in worked)])
        for part in self.parts:
            load, report, mine = part.load, part.order.report, among(clients, part.order.clients)
            answered, trained_on = np.sort(clients[mine]), int(samples[mine].sum())
            books.arrived(
                answered, load, samples=trained_on, steps=int(steps[mine].sum()), report=report, filters=filters
            )
            books.released(answered, report, filters)


def _statistics_from_current(updates: Updates, spec: ParameterSpec) -> Updates:
    """Running statistics of answers to older models, relative to the current one.

    They are estimates that are averaged. If their movements were added up instead, ten clients that started
    together and answer one by one would move them ten times as far as each of them estimated: a variance below
    zero.
    """
    buffers = buffers_of(spec)
    if buffers.start == buffers.stop or not updates.staleness.any():
        return updates
    movements = updates.movements if updates.movements.flags.writeable else updates.movements.copy()
    movements[:, buffers] = updates.seen_from_current(buffers)
    return replace(updates, movements=movements)


def _write_back(filtered: Updates, arrived: Updates) -> None:
    """Put filtered rows where the engine's matrix has them: a filter may have worked on a copy."""
    if filtered.movements is not arrived.movements:
        arrived.movements[positions(arrived.clients, filtered.clients)] = filtered.movements
