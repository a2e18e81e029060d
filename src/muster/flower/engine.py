"""The Flower engine: `ask`, `start`, `collect` and `evaluate` as exchanges with nodes over a grid."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import RecordDict

from muster.config.flower import FlowerOptions
from muster.config.identity import client_fingerprint
from muster.core.arrays import Floats, Ints, State, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.core.registry import build
from muster.engine.base import AskOrder, Engine, Evaluation, Failed, TrainOrder, collect_replies, schedule
from muster.engine.live import Arrival, Live, LostAnswer
from muster.engine.root import RootTrainer
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Place
from muster.experiment.parts import Ingredients
from muster.flower import wire
from muster.flower.allowlist import AllowList
from muster.flower.claims import Ordered, check_counts, check_simulable, check_work
from muster.flower.cohort import CohortMovements, in_order
from muster.flower.evaluation import check_evaluation, evaluate_here, row_width, with_validation
from muster.flower.exchange import Exchanges, Versions, checked_record
from muster.flower.identity import ClientRegister
from muster.flower.mail import Mail, NoAnswer, Sent
from muster.flower.presence import Presence
from muster.flower.scores import believed, summed
from muster.flower.update_signals import measure_on_update
from muster.flower.wire import Measured, Scores, version_of
from muster.server.limits import ClientLimits
from muster.signals.base import Replies
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.context import PROBE, TrainOutcome
from muster.training.objectives import Objective
from muster.updates.filters import Filter, named
from muster.updates.table import Updates

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("muster")


@dataclass(frozen=True)
class _Decoded:
    """A training answer, decoded."""

    #: The samples that its client stated when it got the order: what its answer was checked against.
    size: int
    numbers: dict[str, float]
    measured: Measured
    vectors: dict[str, Vector]
    #: Which filters of the client's side changed the update.
    changed: dict[str, int]


@dataclass(frozen=True)
class _UnderWay:
    """A training whose orders are sent, and whose answers are not collected yet."""

    order: TrainOrder
    task: ClientTask
    decode: Callable[[int, RecordDict], _Decoded]
    #: Clients that no longer have a node.
    gone: list[int]
    sent: Sent
    #: In real time: answers that have come and have not been taken yet.
    arrived: dict[int, _Decoded] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether nothing more will come of it."""
        return not (self.gone or self.sent.failed or self.sent.waiting or self.arrived)


class FlowerEngine(Engine, Live):
    """Runs the clients of an experiment on the nodes of a Flower federation."""

    def __init__(self, grid: Grid, ingredients: Ingredients, options: FlowerOptions | None = None) -> None:
        self._options = options or FlowerOptions()
        self._options.check()
        check_simulable(ingredients.filters)
        self._ingredients = ingredients
        self._mail = Mail(grid, deadline=self._options.deadline, poll=self._options.poll)
        self._runtime = ClientRuntime(
            ingredients.data,
            copy.deepcopy(ingredients.module),
            ingredients.training,
            ingredients.algorithm,
            seed=ingredients.experiment.seed,
            devices=ingredients.devices,
            objective=ingredients.objective,
        )
        flat = FlatModel(copy.deepcopy(ingredients.module))
        self._spec, self._initial = flat.spec, flat.vector()
        partitioned = ingredients.data.clients > 0
        self._limits = build(ClientLimits, ingredients.experiment.limits, "limits")
        tests = ingredients.data.test_index
        self._registry = ClientRegister(
            expected=ingredients.data.sizes if partitioned else None,
            expected_tests=tests.sizes if partitioned and tests is not None else None,
            max_samples=self._limits.max_samples,
        )
        experiment = wire.agreement(client_fingerprint(ingredients.experiment.described()), self._spec)
        self._events: list[str] = []
        allow_list = self._read_allow_list()
        self._exchanges = Exchanges(self._mail, self._registry, experiment, allow_list)
        self._presence = Presence(self._mail, self._registry, experiment, allow_list)
        self._round = 0
        #: Which clients are there, as seen when the round began.
        self._there: Ints | None = None
        self._versions = Versions()
        #: Client → samples of its next training that its probe has done.
        self._spared: dict[int, int] = {}
        #: Of the answers that were handed over last: the versions to count on if their updates are used.
        self._provisional: dict[int, str] = {}
        #: The training that is being collected, or was last.
        self._cohort: CohortMovements | None = None
        self._under_way: list[_UnderWay] = []
        #: (exchange, client) → the training whose answer is no longer awaited.
        self._given_up: dict[tuple[str, int], Place] = {}
        self._root: RootTrainer | None = None
        check_evaluation(self._options, ingredients.data)
        self._presence.wait_for(self._wanted(), self._options.wait)

    # --- what is known -----------------------------------------------------------------------------------

    @property
    def population(self) -> Population:
        data = self._ingredients.data
        return Population(
            sizes=self._registry.population,
            classes=data.classes,
            spec=self._spec,
            rounds=0,
            attributes=data.dataset.attribute_values,
            has_devices=self._ingredients.devices is not None,
            class_labels=self.objective.class_labels,
            negative_losses=self.objective.may_be_negative,
        )

    @property
    def training(self) -> LocalTraining:
        return self._ingredients.training

    @property
    def algorithm(self) -> LocalAlgorithm:
        return self._ingredients.algorithm

    @property
    def objective(self) -> Objective:
        return self._ingredients.objective

    @property
    def filters(self) -> tuple[Filter, ...]:
        return self._ingredients.filters

    @property
    def sums_only(self) -> bool:
        return self._options.secure_aggregation

    def describe(self) -> str:
        return f"Flower engine, {len(self.reachable(0))} of {self.population.clients} clients are there"

    def initial_parameters(self) -> Vector:
        return self._initial.copy()

    @property
    def live(self) -> Live | None:
        return self if self._options.clock == "real" else None

    def reachable(self, round: int) -> Ints:
        return self._presence.clients() if self._there is None else self._there

    def begin_round(self, round: int) -> None:
        self._round = round
        self._mail.drop_late()
        self._presence.look_around()
        self._there = self._presence.clients()

    def _read_allow_list(self) -> AllowList | None:
        if self._options.allow_list is not None:
            return AllowList(Path(self._options.allow_list), shared_keys=self._options.shared_keys)
        warning = "no allow-list: which client a node is, is the node's own word (flower.allow_list)"
        log.warning(warning)
        self._events.append(warning)
        return None

    def _wanted(self) -> int:
        clients = self._ingredients.data.clients
        if self._options.nodes is None and not clients:
            raise ConfigError(
                "flower.nodes is missing: clients bring their own data, so the experiment does not say how many",
                fix="set nodes = … in the section [flower]",
            )
        return self._options.nodes or clients

    def take_events(self) -> list[str]:
        events = [*self._presence.take_events(), *self._exchanges.take_events(), *self._events]
        self._events = []
        return events

    # --- the verbs ---------------------------------------------------------------------------------------

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        clients = schedule(order.clients, self.population.sizes)
        uses_model = any(signal.uses_model for signal in order.signals)
        arrays = wire.array_record({wire.MODEL: order.parameters}) if uses_model else None
        type = f"query.{order.signals[0].name}" if len(order.signals) == 1 else wire.SIGNALS
        orders = self._exchanges.orders(order.task(clients), self._versions)
        widths = {signal.name: signal.width(self.population) for signal in order.signals}
        values: dict[int, dict[str, Floats]] = {}
        failures = []

        population = self.population

        def decode(client: int, content: RecordDict) -> Measured:
            measured = Measured.from_record(checked_record(content, client, order.place), widths)
            check_counts(measured.values, order.signals, population, client)
            return measured

        for client, answer in self._exchanges.exchange(type, orders, arrays, decode):
            if isinstance(answer, Failed):
                failures.append(answer)
                self._events.append(f"client {client} was asked in vain: {answer.reason}")
                continue
            values[client] = answer.values
            if probes := [signal for signal in order.signals if PROBE in signal.client_state]:
                self._versions.probes[client] = version_of(order.place)
                size = int(population.sizes[client])
                self._spared[client] = sum(signal.spares(size, self.training) for signal in probes)
        replies, misshapen = collect_replies(values, order.signals, self.population)
        return replies, failures + misshapen

    def start(self, order: TrainOrder) -> None:
        population = self.population
        clients = schedule(order.clients, population.sizes)
        report = tuple(signal for signal in order.report if not signal.in_update)
        down = {wire.MODEL: order.parameters}
        if order.broadcast is not None:
            down[wire.BROADCAST] = order.broadcast
        task = replace(order.task(clients), signals=report)
        spared = dict(self._spared)
        widths = {signal.name: signal.width(population) for signal in report}
        filters = [name for name, _ in named(self.filters)]

        def decode(client: int, content: RecordDict) -> _Decoded:
            record, size = checked_record(content, client, order.place), int(population.sizes[client])
            names = (wire.MODEL, *self.algorithm.extra)
            ordered = Ordered(self.training, self.algorithm, size, spared=spared.get(client))
            numbers = wire.numbers_from_record(record, ordered.most)
            measured = Measured.from_record(record, widths)
            check_work(numbers, ordered)
            check_counts(measured.values, report, population, client)
            return _Decoded(
                size,
                numbers,
                measured,
                wire.arrays_of(content, names, self._spec.size),
                wire.changed_from_record(record, filters),
            )

        gone, sent = self._exchanges.send(
            wire.TRAIN, self._exchanges.orders(task, self._versions), wire.array_record(down)
        )
        self._forget_probes()
        self._under_way.append(_UnderWay(order, task, decode, gone, sent))

    def collect(self) -> Iterator[Updates | Failed]:
        self._provisional = {}
        while self._under_way:
            training = self._under_way.pop(0)
            answers = self._exchanges.receive(training.gone, training.sent, training.decode)
            yield from self._handed_over(training.order, training.task, answers)

    def _handed_over(
        self, order: TrainOrder, task: ClientTask, answers: Iterator[tuple[int, _Decoded | Failed]]
    ) -> Iterator[Updates | Failed]:
        """Answers in the order in which a training's clients are served, as updates."""
        self._cohort = CohortMovements(order, self._spec)
        for (client, answer), lr in zip(in_order(task.clients, answers), task.rates.tolist(), strict=True):
            yield answer if isinstance(answer, Failed) else self._trained(client, answer, order, lr)

    # --- in real time ------------------------------------------------------------------------------------

    def seconds(self) -> float:
        return self._mail.now()

    def pause(self) -> None:
        self._mail.pause()

    def arrivals(self) -> list[Arrival]:
        arrivals = []
        by_letters = {id(training.sent): training for training in self._under_way}
        for training in self._under_way:
            lost = LostAnswer("no node speaks for it any more", gone=True)
            arrivals += [Arrival(training.order.place, client, lost) for client in training.gone]
            training.gone.clear()
        for sent, client, content in self._mail.look([training.sent for training in self._under_way]):
            training = by_letters[id(sent)]
            answer, problem = self._exchanges.judged(client, content, sent, training.decode), None
            if isinstance(answer, Failed):
                problem = LostAnswer(answer.reason, gone=isinstance(content, NoAnswer) and content.gone)
            else:
                training.arrived[client] = answer
            arrivals.append(Arrival(training.order.place, client, problem))
        self._forget_what_is_done()
        return arrivals

    def answers(self, orders: Sequence[TrainOrder]) -> Iterator[Updates | Failed]:
        self._provisional = {}
        for order in orders:
            training = self._training_at(order.place)
            assert training is not None  # its answers have arrived, and are not taken yet
            arrived = training.arrived
            task = order.task(schedule(order.clients, self.population.sizes))
            taken = iter([(client, arrived.pop(client)) for client in task.clients.tolist()])
            yield from self._handed_over(order, task, taken)
        self._forget_what_is_done()

    def give_up(self, order: TrainOrder) -> None:
        training, clients = self._training_at(order.place), order.clients.tolist()
        if training is None:  # all have failed meanwhile: none is left to give up on
            return
        for client in clients:
            training.arrived.pop(client, None)
        awaited = set(training.sent.waiting.values()).intersection(clients)
        self._given_up |= {(training.sent.group, client): order.place for client in awaited}
        self._mail.give_up(training.sent, clients)
        self._forget_what_is_done()

    def too_late(self) -> list[tuple[Place, int]]:
        dropped, self._mail.dropped = self._mail.dropped, []
        return [(self._given_up.pop(who), who[1]) for who in dropped if who in self._given_up]

    def _training_at(self, place: Place) -> _UnderWay | None:
        return next((training for training in self._under_way if training.order.place == place), None)

    def _forget_what_is_done(self) -> None:
        self._under_way = [training for training in self._under_way if not training.done]

    # --- after a training --------------------------------------------------------------------------------

    def matrix(self, clients: Ints) -> Vector:
        assert self._cohort is not None
        return self._cohort.matrix(clients)

    def check_root(self) -> None:
        self._root_trainer()

    def root_movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        return self._root_trainer().movement(parameters, place, lr)

    def _root_trainer(self) -> RootTrainer:
        if self._root is None:
            made = self._ingredients
            self._root = RootTrainer(made.data, made.module, made.training, made.experiment.seed)
        return self._root

    def settle(self, used: Ints, refused: Ints) -> None:
        """No separate message: the next order to a client names the version that counts."""
        counted = self._provisional.keys() & set(used.tolist())
        self._versions.states |= {client: self._provisional[client] for client in sorted(counted)}
        self._provisional = {}

    def evaluate(self, parameters: Vector) -> Evaluation:
        on_clients = self._options.evaluate == "clients"
        if on_clients:
            evaluation = self._evaluate_on_clients(parameters)
        else:
            evaluation = evaluate_here(self._runtime, parameters, self.population.clients)
        return with_validation(evaluation, self._runtime, parameters)

    def _evaluate_on_clients(self, parameters: Vector) -> Evaluation:
        data, clients = self._ingredients.data, self.population.clients
        classes, values = data.classes if self.objective.class_labels else 0, data.dataset.attribute_values or 0
        width = row_width(self._runtime, self._ingredients.module)
        place = Place(self._round, 0, 0)
        there = [client for client in self._presence.clients().tolist() if self._registry.tested[client]]
        # A node does one thing at a time: a client that is training would keep all others waiting.
        busy = {client for training in self._under_way for client in training.sent.waiting.values()}
        if at_work := sorted(busy.intersection(there)):
            self._events.append(f"not evaluated, being at work: clients {', '.join(map(str, at_work))}")
            there = [client for client in there if client not in busy]
        nothing = np.zeros(len(there))
        task = ClientTask("ask", np.array(there, dtype=np.int64), place, (), nothing, nothing)
        orders = self._exchanges.orders(task, self._versions)
        arrays = wire.array_record({wire.MODEL: parameters})

        def decode(client: int, content: RecordDict) -> Scores:
            record = checked_record(content, client, place)
            tested = self._registry.tested[client]
            return Scores.from_record(record, classes, classes * values, tested, width=width, attributes=values)

        answers: dict[int, Scores] = {}
        for client, answer in self._exchanges.exchange(wire.EVALUATE, orders, arrays, decode):
            if isinstance(answer, Failed):
                self._events.append(f"client {client} did not evaluate: {answer.reason}")
            else:
                answers[client] = answer
        answers, less = believed(answers, self._limits)
        self._events += less
        return summed(
            answers, clients, data.classes, data.dataset.attribute_values, objective=self.objective, width=width
        )

    # --- results of a training ---------------------------------------------------------------------------

    def _trained(self, client: int, answer: _Decoded, order: TrainOrder, lr: float) -> Updates:
        assert self._cohort is not None
        movement = self._cohort.movement(client, answer.vectors[wire.MODEL])
        if self.algorithm.client_state:
            self._provisional[client] = version_of(order.place)
        if answer.measured.lost:
            self._events.append(f"client {client} had lost its state and trained like a new one")
        population, numbers = self.population, answer.numbers
        contained = measure_on_update(
            [signal for signal in order.report if signal.in_update],
            order,
            movement,
            TrainOutcome(steps=int(numbers["steps"]), samples=int(numbers["samples"])),
            lr=lr,
            population=population,
            training=self.training,
        )
        reports = answer.measured.values | contained
        sent = Updates.of(
            client,
            answer.size,
            movement,
            numbers,
            reports={signal.name: reports[signal.name] for signal in order.report},
            extra={name: answer.vectors[name] for name in self.algorithm.extra},
        )
        return replace(sent, changed={name: np.array([flag]) for name, flag in answer.changed.items()})

    # --- checkpoints -------------------------------------------------------------------------------------

    def end_round(self) -> None:
        self._forget_probes()

    def _forget_probes(self) -> None:
        """A probe is credited to one training."""
        self._versions.probes.clear()
        self._spared.clear()

    def state_dict(self) -> State:
        self._versions.saved = dict(self._versions.states)
        return {"registry": self._registry.state_dict(), "states": dict(self._versions.states)}

    def load_state_dict(self, values: State) -> None:
        self._registry.load_state_dict(values["registry"])
        self._versions = Versions(states=dict(values["states"]), saved=dict(values["states"]))
