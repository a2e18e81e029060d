"""The server loop: drives a selector's requests through an engine and an aggregator, and keeps the records."""

from __future__ import annotations

import copy
import logging
import math
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from muster.aggregation.base import Aggregator
from muster.core.arrays import Ints, State, Vector, read_only
from muster.core.component import Population
from muster.core.errors import UNREADABLE, CheckpointError, ConfigError, TrainingError
from muster.core.randomness import generator
from muster.engine.base import Engine, Failed
from muster.pacing import Pacing, Synchronous
from muster.privacy.account import Privacy
from muster.selection.base import Request, Selector, View
from muster.selection.history import History
from muster.server.asynchrony import check_pacing
from muster.server.chain import check_filters
from muster.server.checks import check_classes, check_fit, check_signal
from muster.server.clocks import ServerClock
from muster.server.conversation import Conversation
from muster.server.flights import Airspace, Flights
from muster.server.ledger import Bookkeeper, Ledger
from muster.server.limits import ClientLimits
from muster.server.metrics import NAN, client_accuracies, group_table, summarise_metrics
from muster.server.persistence import Persistence, Rounds, Saved, Stage
from muster.server.real_time import RealClock
from muster.server.record import RoundRecord, TrainingRecord
from muster.server.result import Result
from muster.updates.filters import Filter
from muster.updates.guard import Guard
from muster.updates.table import Updates
from muster.world.availability import Availability, TimedAvailability
from muster.world.devices import Devices

log = logging.getLogger(__name__)


class Observer:
    """Is told what happens in a run: progress displays, trackers, stores. Every method is optional."""

    def started(self, server: Server, rounds: int, done: int) -> None:
        """A run begins, or continues after `done` rounds."""

    def requested(self, request: Request, round: int) -> None:
        """The selector has made a valid request; `round` counts from 0."""

    def answered(self, answers: Updates | Failed) -> None:
        """Clients have answered a training request; vectors are valid only during the call."""

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        """A round is complete and, where the run is kept, saved."""

    def wants_stop(self) -> bool:
        """Asked after every round: True ends the run there, with a checkpoint."""
        return False


#: Larger federations keep the accuracy of every single client for the last round only.
MANY_CLIENTS = 2000
#: Where a store keeps the rounds, this many of the newest stay in memory.
ROUNDS_IN_MEMORY = 100
#: The metrics of a round that is not evaluated.
UNMEASURED = {"accuracy": NAN, "loss": NAN}


_DIVERGED = "lower the learning rate, clip gradients, or raise guard.max_norm"
#: What to do when no answer counts in time, by how the reason begins.
_TOO_SLOW = {
    "late": "give clients more time (pacing.seconds, pacing.quantile), or less to do (training.epochs)",
    "left": "give clients less to do (training.epochs, a smaller model), or look at [devices] and [availability]",
    "too stale": "raise pacing.max_staleness, or lower pacing.in_flight",
}


class Server:
    """Runs rounds: any selector, any aggregator, any engine."""

    def __init__(
        self,
        selector: Selector,
        aggregator: Aggregator,
        engine: Engine,
        *,
        seed: int = 0,
        guard: Guard | None = None,
        filters: Sequence[Filter] = (),
        evaluate_every: int = 1,
        availability: Availability | None = None,
        devices: Devices | None = None,
        pacing: Pacing | None = None,
        privacy: Privacy | None = None,
        limits: ClientLimits | None = None,
        clock: ServerClock | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.selector, self.aggregator, self.engine = selector, aggregator, engine
        self.seed, self.guard, self.evaluate_every = seed, guard or Guard(), evaluate_every
        #: Of the server's side, in this order, as part of `server_chain`. Those of clients are the engine's.
        self.filters = tuple(filters)
        self.pacing, self.privacy, self.limits = pacing or Synchronous(), privacy, limits or ClientLimits()
        #: Time: virtual, with devices and sessions, or real where clients work in real time.
        self.clock = clock or _clock(engine, devices, availability, seed)
        #: The clients under way.
        self.airspace = Airspace()
        #: How many aggregations the global model has had.
        self.version = 0
        self.observers = tuple(observers)
        #: Those that want to hear about every single answer.
        self.listeners = tuple(o for o in self.observers if type(o).answered is not Observer.answered)
        self.parameters: Vector = engine.initial_parameters()
        self.history = History(engine.population.clients)
        #: Who could be reached at the last look: (round, clients, time), who was at work then, and ids.
        self._reached: tuple[tuple[int, int, float], Flights, Ints] | None = None
        self.ledger = Ledger()
        #: How many clients the aggregator knows of; None: it has not been told.
        self._introduced: int | None = None
        #: How many rounds are done, and what they left: all of them, or the newest where a store keeps the others.
        self.done = 0
        self.records: list[RoundRecord] = []
        self._persistence: Persistence | None = None
        #: What evaluations have measured so far, on validation data where there are, for schedules to follow.
        self.losses = array("d")
        #: The last rounds in which a training ended.
        self._ended: deque[RoundRecord] = deque(maxlen=max(1, self.guard.max_failed_rounds))

    def run(self, rounds: int, persistence: Persistence | None = None) -> Result:
        """Run until `rounds` rounds are done, counting those that an earlier process has left."""
        self._begin(rounds)
        self._persistence = persistence
        if persistence is not None and (saved := persistence.load()) is not None:
            self._restore(saved)
            self._introduce(rounds)
        for observer in self.observers:
            observer.started(self, rounds, self.done)
        stopped, failure = False, self._nothing_works() if self.done >= rounds else None
        while self.done < rounds and not stopped and failure is None:
            start = time.perf_counter()
            record = self._round(self.done, rounds)
            self.ledger.current.seconds = time.perf_counter() - start
            self._remember(record)
            stopped, failure = any(observer.wants_stop() for observer in self.observers), self._nothing_works()
            if persistence is not None:
                complete = self.done == rounds and failure is None
                stage: Stage = "complete" if complete else "stopped" if stopped else "running"
                persistence.round_ended(record, self.ledger.current, self.ledger.disclosed[-1], self._state, stage)
            for observer in self.observers:
                observer.round_ended(record, self.ledger)
            self._forget()
        if failure is not None:
            raise failure
        return self.result(complete=self.done >= rounds)

    def result(self, complete: bool = False) -> Result:
        """What there is so far; later rounds do not change it."""
        forgotten = self.done - len(self.records)
        first = self._persistence.first(forgotten) if self._persistence is not None and forgotten else Rounds()
        # A round that was broken off has costs, but no record.
        costs, disclosed = (each[: len(self.records)] for each in (self.ledger.rounds, self.ledger.disclosed))
        own = copy.deepcopy((costs, disclosed, self.ledger.privacy))
        return Result(
            parameters=self.parameters,
            records=[*first.records, *self.records],
            ledger=Ledger([*first.costs, *own[0]], [*first.disclosed, *own[1]], own[2]),
            history=self.history.snapshot(),
            spec=self.engine.population.spec,
            complete=complete,
        )

    def check(self, rounds: int) -> None:
        """Every mistake that can be detected before round 1."""
        if rounds < 1:
            raise ConfigError(f"rounds is {rounds}", expected="at least 1")
        if self.evaluate_every < 1:
            raise ConfigError(f"evaluate_every is {self.evaluate_every}", expected="at least 1")
        population = self.engine.population
        timed = population.timed_availability or isinstance(self.clock.availability, TimedAvailability)
        population = replace(population, rounds=rounds, timed_availability=timed)
        self.guard.check()
        self.limits.check()
        self.engine.training.check()
        check_classes(self.selector, self.aggregator, self.engine.algorithm, self.engine, self.filters)
        self.selector.check(population)
        for signal in self.selector.needs():
            check_signal(signal, type(self.selector).__name__, self.engine)
        self.aggregator.check(population)
        for signal in self.aggregator.reports():
            check_signal(signal, type(self.aggregator).__name__, self.engine)
        check_fit(self.selector, self.aggregator, self.engine.algorithm)
        if self.aggregator.needs_root:
            self.engine.check_root()
        self.aggregator.check_training(self.engine.training, self.engine.algorithm)
        if self.engine.sums_only:
            from muster.server.secure_aggregation import check_secure_aggregation

            check_secure_aggregation(self.selector, self.aggregator, self.guard, self.engine, self.filters)
        for step in (*self.engine.filters, *self.filters):
            step.check(population)
        check_filters(self.filters, self.engine.filters, self.aggregator.clip_norm, self.engine.algorithm)
        self.engine.algorithm.check(population)
        self.engine.algorithm.check_training(self.engine.training)
        if self.clock.availability is not None:
            self.clock.availability.check(population)
            if self.clock.availability.timed and self.engine.live is not None:
                raise ConfigError(
                    "simulated clients come and go by virtual time, but these clients work in real time",
                    fix="leave out the section [availability], or set flower.clock = 'virtual'",
                )
            if self.clock.availability.timed and not self.clock.passes:
                raise ConfigError(
                    "clients come and go by time, but without devices no time passes",
                    fix="add a section [devices], for example method = 'phones'",
                )
        self.pacing.check(population)
        check_pacing(self.pacing, self.selector, self.aggregator, self.engine, self.clock.passes)
        if self.privacy is not None:
            self.privacy.check(population)

    def cautions(self, rounds: int) -> list[str]:
        """What a user should know before round 1: options that reduce a method to a simpler one, or do nothing."""
        cohort = self.selector.get_params().get("clients_per_round")
        population = replace(
            self.engine.population, rounds=rounds, cohort=cohort, late_answers=self.pacing.late_count
        )
        training = self.engine.training
        if training.centralised:
            return training.cautions()
        # An aggregation does not always get the answers of one cohort.
        answers = None if cohort is None else self.pacing.answers(cohort)
        found = [
            *training.cautions(),
            *self.selector.cautions(population),
            *self.aggregator.cautions(replace(population, cohort=answers)),
            *self.engine.algorithm.cautions(population),
            *self.pacing.cautions(population),
        ]
        if self.privacy is not None and not self._protects(self.privacy):
            found.append(
                "[privacy] protects nothing here: the methods declare no signal that it covers, and it does not "
                "cover model updates"
            )
        return found

    def _protects(self, privacy: Privacy) -> bool:
        """Whether noise covers any signal that the methods declare."""
        wanted = (*self.selector.needs(), *self.aggregator.reports())
        return privacy.protect(wanted, self.engine.population.classes) != wanted

    def _begin(self, rounds: int) -> None:
        self.check(rounds)
        for text in self.cautions(rounds):
            log.warning("%s", text)
        self._introduced = None
        self._introduce(rounds)

    def _introduce(self, rounds: int) -> None:
        """Tell the aggregator how many clients there are, where that has changed."""
        population = self.engine.population
        if population.clients != self._introduced:
            self.aggregator.prepare(replace(population, rounds=rounds))
            self._introduced = population.clients

    # --- one round ---------------------------------------------------------------------------------------

    def _round(self, round: int, rounds: int) -> RoundRecord:
        self.engine.begin_round(round)
        self._introduce(rounds)
        known = self.engine.population
        population = replace(known, rounds=rounds, sizes=self.limits.counted(known.sizes))
        self.history.grow(population.clients)
        self.ledger.open_round()
        # Clients train on all that they have, however much of it counts.
        books = Bookkeeper(self.ledger, replace(known, rounds=rounds), self.engine.training)
        record = RoundRecord(round + 1, began=self.clock.now)
        if round == 0:
            record.events += self.cautions(rounds)
        again = self.clock.begin_round(round, self.engine)
        for sent in again:
            books.dispatched(sent.order.clients, sent.load)
        told = sorted(client for sent in again for client in sent.order.clients.tolist())
        record.events += [
            f"client {client} was told to train once more: the server had been away" for client in told
        ]
        for late in self.clock.too_late():
            books.too_late(late.client, late.load, late.report, self.engine.filters)
        Conversation(self, population, round, books=books, record=record).hold()
        record.ended, record.observed = self.clock.now, self.clock.observed
        self.ledger.current.virtual_seconds = record.ended - record.began
        self.engine.end_round()
        self._measure(record, rounds)
        record.events += self.engine.take_events()
        return record

    def reachable(self, population: Population, round: int) -> Ints:
        """Who is there and not at work, ascending: looked up again only when that can have changed."""
        moment, flights = (round, population.clients, self.clock.now), self.airspace.flights
        if self._reached is None or self._reached[0] != moment or self._reached[1] is not flights:
            self._reached = moment, flights, self._look_around(population.clients, round)
        return self._reached[2]

    def _look_around(self, clients: int, round: int) -> Ints:
        available = self.engine.reachable(round)
        there, busy = self.clock.reachable(round, clients), self.airspace.flights.clients
        if there is None and not len(busy):
            return available
        # A mask, not a set: with millions of clients sorting would take longer than everything else.
        free = np.ones(clients, dtype=np.bool_) if there is None else there
        if len(available) < clients:
            known = np.zeros(clients, dtype=np.bool_)
            known[available] = True
            free &= known
        free[busy] = False
        return np.flatnonzero(free)

    def view(self, population: Population, round: int, cohort: int = 0) -> View:
        """What the selector may know; `cohort`: how many cohorts have been chosen in this round already."""
        available = self.reachable(population, round)
        return View(
            round=round,
            rounds=population.rounds,
            sizes=read_only(population.sizes),
            available=read_only(available),
            history=self.history,
            rng=generator(self.seed, "selection", round, *([cohort] if cohort else [])),
            classes=population.classes,
            spec=population.spec,
            now=self.clock.now,
            forecast=self.clock.forecast(),
            late_answers=self.pacing.late_count,
        )

    def _remember(self, record: RoundRecord) -> None:
        self.done += 1
        self.records.append(record)
        loss = record.metrics.get("validation_loss", record.metrics.get("loss", NAN))
        if not math.isnan(loss):
            self.losses.append(loss)
        # A round in which no training ended has not failed: those under way may still answer.
        if not record.only_waited:
            self._ended.append(record)

    def _forget(self) -> None:
        """Leave older rounds to the store, so that long runs need no more memory than short ones."""
        if self._persistence is None or len(self.records) < 2 * ROUNDS_IN_MEMORY:
            return
        kept = self._persistence.kept - (self.done - len(self.records))
        if (count := min(kept, len(self.records) - ROUNDS_IN_MEMORY)) > 0:
            del self.records[:count]
            self.ledger.forget(count)

    def _measure(self, record: RoundRecord, rounds: int) -> None:
        last = record.round == rounds
        if last or record.round % self.evaluate_every == 0:
            took_part = sorted({client for training in record.trainings for client in training.clients})
            evaluation, last_trained = self.engine.evaluate(self.parameters), record.last_trained
            if self.engine.training.centralised:  # all data took part
                took_part = last_trained = list(range(len(evaluation.client_count)))
            record.metrics = summarise_metrics(
                evaluation, np.array(took_part, dtype=np.int64), np.array(last_trained, dtype=np.int64)
            )
            record.groups = group_table(evaluation)
            if last or len(evaluation.client_count) <= MANY_CLIENTS:
                record.client_accuracy = client_accuracies(evaluation)
        else:
            record.metrics = dict(UNMEASURED)

    def _nothing_works(self) -> TrainingError | None:
        """The error to stop with, when too many rounds in a row had no valid update."""
        limit = self.guard.max_failed_rounds
        recent = list(takewhile(lambda record: record.failed, reversed(self._ended)))
        if len(recent) < limit:
            return None
        last = recent[0].trainings[-1] if recent[0].trainings else TrainingRecord([], [])
        reasons = {**last.failed, **last.rejected}
        client, reason = next(iter(reasons.items()), (None, "no client was selected"))
        fix = next((advice for start, advice in _TOO_SLOW.items() if reason.startswith(start)), _DIVERGED)
        return TrainingError(
            f"{limit} rounds in a row had no valid update (last reason: client {client}: {reason})",
            fix=f"{fix}; the model before is kept",
        )

    # --- checkpoints -------------------------------------------------------------------------------------

    def _state(self) -> State:
        return {
            "parameters": self.parameters,
            "spec": self.engine.population.spec.state_dict(),
            "selector": self.selector.state_dict(),
            "aggregator": self.aggregator.state_dict(),
            "engine": self.engine.state_dict(),
            "history": self.history.state_dict(),
            "privacy": self.ledger.privacy.state_dict(),
            "filters": [step.state_dict() for step in self.filters],
            "time": {"now": self.clock.now, "version": self.version, "airspace": self.airspace.state_dict()},
        }

    def _restore(self, saved: Saved) -> None:
        state = saved.state
        spec = state.get("spec")
        if (spec.get("frozen", "") if isinstance(spec, dict) else "") != self.engine.population.spec.frozen:
            raise CheckpointError(
                "the frozen parts of the model are not those with which the run began",
                fix="bring the pretrained weights of that time back, or start the run anew",
            )
        try:
            self.parameters = state["parameters"]
            self.selector.load_state_dict(state["selector"])
            self.aggregator.load_state_dict(state["aggregator"])
            self.engine.load_state_dict(state["engine"])
            self.history.load_state_dict(state["history"])
            self.ledger.privacy.load_state_dict(state["privacy"])
            for step, kept in zip(self.filters, state.get("filters", ()), strict=False):
                step.load_state_dict(kept)
            # Runs that were kept before there was a clock had no time to continue from.
            if (time := state.get("time")) is not None:
                self.version = time["version"]
                self.airspace.load_state_dict(time["airspace"], self.engine.population.classes)
                self.clock.go_on(time["now"], self.airspace)
            if np.shape(self.parameters) != (self.engine.population.spec.size,):
                raise ValueError(f"a model of shape {np.shape(self.parameters)}")
        except UNREADABLE as error:
            raise CheckpointError(
                f"the checkpoint does not fit this version's components ({error!r})",
                fix="continue it with the version of Muster that wrote it",
            ) from error
        self.ledger.rounds, self.ledger.disclosed = list(saved.costs), list(saved.disclosed)
        for record in saved.records:
            self._remember(record)


def _clock(engine: Engine, devices: Devices | None, availability: Availability | None, seed: int) -> ServerClock:
    if engine.live is not None:
        return RealClock(engine.live, availability, seed)
    return ServerClock(devices, availability, seed)
