"""One training: which clients are told to train, whose answers have arrived, which count, and the next model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregated, Aggregator, StreamingAggregator, buffers_of
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Population
from muster.core.errors import TrainingError
from muster.core.parameters import ParameterSpec
from muster.engine.base import Failed, TrainOrder, narrowed
from muster.engine.task import Place
from muster.pacing.base import Wait, landing
from muster.selection.base import Train
from muster.server.chain import server_chain
from muster.server.checks import checked_mask
from muster.server.door import BelievableReports
from muster.server.flights import Dispatch, Flights, positions
from muster.server.record import Flown, Outcome, TrainingRecord
from muster.signals.base import Replies, Signal
from muster.training.context import Trainings
from muster.updates.filters import Draws, Tally, named, passed_through, streams, working
from muster.updates.table import Updates
from muster.world import draws

if TYPE_CHECKING:
    from muster.server.conversation import Conversation

log = logging.getLogger("muster")

#: Columns of the update table that the server fills in, besides sizes and weights.
_OF_THE_SERVER = ("multiplicity", "lr", "lr_factors", "version", "staleness", "arrived")


def aggregator_for(request: object, own: Aggregator) -> Aggregator:
    """The run's own, unless a training is to be plain FedAvg: then a fresh one, which has no state."""
    most = own.max_weight
    return FedAvg(max_weight=most) if isinstance(request, Train) and request.fedavg else own


def dispatch(talk: Conversation, request: Train) -> int:
    """Tell clients to train on the model as it is now; the number of the request."""
    server, books, clients = talk.server, talk.books, request.clients
    aggregator = aggregator_for(request, server.aggregator)
    order = TrainOrder(
        clients=clients,
        parameters=server.parameters,
        place=talk.place(),
        lr=talk.lr,
        report=talk.protected(_distinct((*request.report, *aggregator.reports()))),
        broadcast=aggregator.broadcast(talk.population.spec),
        lr_factors=request.lr_factors,
        pull_factors=request.pull_factors,
    )
    engine = server.engine
    vectors = 1 if order.broadcast is None else 2, 1 + len(engine.algorithm.extra)
    load = books.update(order.report, *vectors, engine.filters)
    samples: Ints | int = 0
    if server.clock.devices is not None:  # otherwise nothing takes time
        samples = np.maximum(books.planned(clients, engine.algorithm) - talk.probed(clients), 0)
    place = order.place.round, order.place.exchange
    trips = server.clock.sending(clients, samples, load.down, load.up, exchange=place)
    talk.probes_used(clients)
    books.dispatched(clients, load)
    sent = Dispatch(request, order, server.version, load)
    number = server.airspace.take_off(sent, server.clock.now, trips, _ties(talk, order))
    server.clock.sent(sent, engine)
    return number


def _ties(talk: Conversation, order: TrainOrder) -> Floats:
    """Which of two answers that arrive together comes first: drawn at random, not decided by ids."""
    server, place = talk.server, order.place
    if not server.clock.passes:  # all clients answer immediately, and no order is kept
        return np.zeros(len(order.clients))
    words = draws.words(server.seed, "arrival", place.round, place.exchange, clients=order.clients)
    return draws.uniform(words[:, 0])


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
        late = np.setdiff1d(np.flatnonzero(own), ended) if not server.pacing.late_count else ended[:0]
        everyone = np.concatenate([ended, late])
        # In the order in which they ended; given up on: at the end.
        self.flights = airspace.land(everyone)
        self.staleness, self.given_up = staleness[everyone], np.arange(len(everyone)) >= len(ended)
        #: Why clients have no answer, where their flights do not say so.
        at = np.flatnonzero(np.isin(ended, list(landed.problems))).tolist() if landed.problems else []
        self.problems = {row: landed.problems[int(ended[row])] for row in at}
        failed = [row for row, problem in self.problems.items() if not problem.gone]
        broken = np.isin(np.arange(len(everyone)), failed)
        #: Whose work was wasted, and why.
        self.absent: dict[Outcome, Bools] = {
            "late": self.given_up,
            "failed": ~self.given_up & broken,
            "left": ~self.given_up & ~self.flights.answers & ~broken,
            "stale": ~self.given_up & self.flights.answers & ~fresh[everyone],
        }
        self.arrived: Bools = ~np.logical_or.reduce(list(self.absent.values()))
        self.parts = self._by_request(self.arrived)
        for part in self._by_request(self.absent["late"]):
            clock.give_up(part, answered=False)
        for part in self._by_request(self.absent["stale"]):
            clock.give_up(part, answered=True)
        #: What all of them report.
        numbers = np.unique(self.flights.dispatch[self.arrived]).tolist() or ([] if number is None else [number])
        asked = [airspace.dispatch(n).order.report for n in numbers]
        names = set.intersection(*({signal.name for signal in report} for report in asked)) if asked else set()
        self.report = tuple(signal for signal in asked[0] if signal.name in names) if asked else ()

    def _by_request(self, which: Bools) -> list[Dispatch]:
        """The requests that some of the flights belong to, each with their clients alone."""
        airspace, flights = self.talk.server.airspace, self.flights.rows(which)
        return [
            airspace.dispatch(number).of(np.sort(flights.clients[flights.dispatch == number]))
            for number in np.unique(flights.dispatch).tolist()
        ]

    def carry_out(self, request: Train | None = None) -> Replies:
        """What the clients whose updates count reported; `request`: the training that has waited."""
        aggregation = Aggregation(self, request)
        server, talk, record = self.talk.server, self.talk, aggregation.record
        aggregation.carry_out()
        self._note_absences(record)
        # An answer that is too old to be used still shows how long it took.
        answered = self.arrived | self.absent["stale"]
        # What was needed, not the difference of two moments: its rounding would make a client late for a deadline
        # that is its own last duration.
        server.history.took(self.flights.clients[answered], self.flights.needed[answered])
        talk.record.trainings.append(record)
        counting = np.array(record.clients, dtype=np.int64)[np.array(record.weights) > 0]
        server.history.trained(counting, talk.round)
        used = np.isin(self.flights.clients, counting) & self.arrived
        server.history.stale(self.flights.clients[used], self.staleness[used])
        if server.clock.passes:
            record.flown = self._flown(record)
        server.airspace.forget()
        replies = aggregation.replies(self.report)
        replies = _with_columns(replies, () if request is None else request.report, talk.population)
        talk.remember(replies, [*record.failed, *record.rejected], trained=True)
        return replies

    def _note_absences(self, record: TrainingRecord) -> None:
        """Which clients left, were late, or answered to a model that was too old; and the work they wasted."""
        server, flights = self.talk.server, self.flights
        now = server.clock.now
        for kind, who in self.absent.items():
            rows = np.flatnonzero(who)
            for row in rows.tolist():
                record_of = record.rejected if kind == "stale" else record.failed
                record_of[int(flights.clients[row])] = self._reason(kind, row)
            for row in rows[np.isin(rows, list(self.problems))].tolist():
                self.talk.client_failed(Failed(int(flights.clients[row]), self.problems[row].reason))
            for number in np.unique(flights.dispatch[rows]).tolist():
                some = rows[flights.dispatch[rows] == number]
                spent = np.minimum(flights.ends[some], now) - flights.started[some]
                sent, books = server.airspace.dispatch(number), self.talk.books
                books.wasted(len(some), sent.load, float(spent.sum()), answered=kind == "stale")
                if kind == "stale":  # what was disclosed counts, whether or not it is used
                    clients = np.sort(flights.clients[some])
                    books.told(len(clients), sent.order.report, server.engine.filters)
                    books.released(clients, sent.order.report)
        late = self.absent["late"]
        server.history.waited(flights.clients[late], now - flights.started[late])

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
        reports = BelievableReports(self.landed.report, self.talk.population)
        self.chain = server_chain(server.guard, reports, own, self.aggregator, server.aggregator.clip_norm)
        self.tally = Tally()

    def carry_out(self) -> None:
        """Train, aggregate, and tell the engine whose updates were used."""
        engine = self.talk.server.engine
        used: Ints = np.empty(0, dtype=np.int64)
        if len(self.clients):
            try:
                result = self._streamed() if self.streams else self._whole()
                if result is not None:
                    self._take_over(result)
                    used = np.sort(result.clients[result.weights > 0])
            finally:
                # Also when the training was broken off: clients must not continue from what was not used.
                engine.settle(used, np.setdiff1d(self.clients, used))
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
        stated, counted = server.engine.population.sizes[result.clients], self.talk.counted_sizes(result.clients)
        self.talk.record.events += [
            f"client {result.clients[row]} states {stated[row]:,} samples and counts as {counted[row]:,}"
            for row in ranks[(counted < stated)[ranks]].tolist()
        ]
        self.record.weights = result.weights[ranks].tolist()

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
            arrived = self._with_what_is_known(answers)
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

    def _drifts(self) -> dict[int, Vector]:
        now = self.talk.server.parameters
        old = {
            part.version: part.order.parameters for part in self.parts if part.version != self.talk.server.version
        }
        return {version: parameters - now for version, parameters in old.items()}

    def _with_what_is_known(self, answers: Updates) -> Updates:
        known, at = self.known, np.searchsorted(self.clients, answers.clients)
        return replace(
            answers,
            # Read now: a federation may learn how many samples a client has from its answer.
            sizes=self.talk.counted_sizes(answers.clients),
            reports={signal.name: answers.reports[signal.name] for signal in self.landed.report},
            weights=None if known.weights is None else known.weights[at],
            drifts=known.drifts,
            **{name: getattr(known, name)[at] for name in _OF_THE_SERVER},
        )

    # --- afterwards --------------------------------------------------------------------------------------

    def replies(self, report: Sequence[Signal]) -> Replies:
        """What the clients whose updates count reported, by id."""
        known = Updates.concatenated(self._valid).by_client()
        columns: dict[str, Floats] = {}
        for signal in report:
            empty = np.empty((0, signal.width(self.talk.population)))
            columns[signal.name] = narrowed(known.reports[signal.name] if len(known) else empty)
        return self.talk.server.limits.believed(Replies(known.clients, columns), tuple(report))

    def _book(self) -> None:
        talk = self.talk
        # A refused update was computed and sent like any other; its reports may be of any shape.
        parts = [replace(part, reports={}) for part in (*self._valid, *self._refused)]
        worked = Updates.concatenated(parts).by_client()
        for part in self.parts:
            alone = len(self.parts) == 1
            mine = worked if alone else worked.rows(np.isin(worked.clients, part.order.clients))
            talk.books.arrived(
                mine.clients,
                part.load,
                samples=int(mine.numbers["samples"].sum()),
                steps=int(mine.numbers["steps"].sum()),
                report=part.order.report,
                filters=talk.server.engine.filters,
            )
            talk.books.released(mine.clients, part.order.report)


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


def _with_columns(replies: Replies, wanted: Sequence[Signal], population: Population) -> Replies:
    """The same, with every signal that is wanted: NaN where those that have arrived were not asked for it."""
    missing = [signal for signal in wanted if signal.name not in replies.values]
    if not missing:
        return replies
    empty = {s.name: narrowed(np.full((len(replies), s.width(population)), np.nan)) for s in missing}
    return Replies(replies.clients, {**replies.values, **empty})


def _distinct(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    return tuple({signal.name: signal for signal in signals}.values())
