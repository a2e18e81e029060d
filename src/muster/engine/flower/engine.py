"""The Flower engine: `ask`, `train` and `evaluate` as exchanges with nodes over a grid."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict

from muster.arrays import Floats, Ints, State, Vector
from muster.component import Population
from muster.engine.base import (
    AskOrder,
    Engine,
    Evaluation,
    Failed,
    Place,
    Trained,
    TrainOrder,
    collect_replies,
    schedule,
)
from muster.engine.device import single_threaded
from muster.engine.evaluation import summarise
from muster.engine.flower import wire
from muster.engine.flower.client import predictions
from muster.engine.flower.identity import Registry
from muster.engine.flower.mail import Letter, Mail, NoAnswer
from muster.engine.flower.options import FlowerOptions, client_fingerprint
from muster.engine.flower.update_signals import measure_on_update
from muster.engine.flower.wire import Introduction, Measured, Order, Scores, WireError, Work, version_of
from muster.engine.runtime import ClientRuntime
from muster.errors import ConfigError, EngineError
from muster.experiment.runner import Ingredients
from muster.parameters import FlatModel
from muster.secure_aggregation import check_secure_aggregation
from muster.signals.base import PROBE, Replies, Signal, TrainOutcome
from muster.training.base import LocalAlgorithm, LocalTraining

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from muster.aggregation.base import Aggregator
    from muster.guard import Guard
    from muster.selection.base import Selector

T = TypeVar("T")


@dataclass(frozen=True)
class _Decoded:
    """A training answer, decoded."""

    work: Work
    measured: Measured
    vectors: dict[str, Vector]


class FlowerEngine(Engine):
    """Runs the clients of an experiment on the nodes of a Flower federation."""

    def __init__(self, grid: Grid, ingredients: Ingredients, options: FlowerOptions | None = None) -> None:
        self._options = options or FlowerOptions()
        self._options.check()
        self._ingredients = ingredients
        self._mail = Mail(grid, deadline=self._options.deadline, poll=self._options.poll)
        self._runtime = ClientRuntime(
            ingredients.data,
            copy.deepcopy(ingredients.module),
            ingredients.training,
            ingredients.algorithm,
            seed=ingredients.experiment.seed,
            devices=ingredients.devices,
        )
        flat = FlatModel(copy.deepcopy(ingredients.module))
        self._spec, self._initial = flat.spec, flat.vector()
        partitioned = ingredients.data.clients > 0
        self._registry = Registry(expected=ingredients.data.sizes if partitioned else None)
        self._experiment = client_fingerprint(ingredients.experiment)
        #: Registration messages under way: message → node.
        self._registering: dict[str, int] = {}
        self._online: list[int] = []
        #: Client → version of its state, and of its probed model, that the server counts on.
        self._states: dict[int, str] = {}
        self._probes: dict[int, str] = {}
        self._rows: Ints = np.empty(0, dtype=np.int64)
        self._movements: Vector = np.empty((0, 0), dtype=np.float32)
        self._events: list[str] = []
        self._wait_for_nodes()

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
        )

    @property
    def training(self) -> LocalTraining:
        return self._ingredients.training

    @property
    def algorithm(self) -> LocalAlgorithm:
        return self._ingredients.algorithm

    def check_methods(self, selector: Selector, aggregator: Aggregator, guard: Guard) -> None:
        if self._options.secure_aggregation:
            check_secure_aggregation(selector, aggregator, guard, self.population.clients)

    def describe(self) -> str:
        there = len(self._registry.present(self._online))
        return f"Flower engine, {there} of {self.population.clients} clients are there"

    def initial_parameters(self) -> Vector:
        return self._initial.copy()

    def reachable(self, round: int) -> Ints:
        return self._registry.present(self._online)

    # --- who is there ------------------------------------------------------------------------------------

    def begin_round(self, round: int) -> None:
        self._mail.drop_late()
        self._look_around()

    def _wait_for_nodes(self) -> None:
        clients = self._ingredients.data.clients
        if self._options.nodes is None and not clients:
            raise ConfigError(
                "flower.nodes is missing: clients bring their own data, so the experiment does not say how many",
                fix="set nodes = … in the section [flower]",
            )
        wanted = self._options.nodes or clients

        def enough() -> bool:
            self._look_around()
            return len(self.reachable(0)) >= wanted

        if not self._mail.wait_until(enough, self._options.wait):
            said = dict.fromkeys(self._registry.refused.values())
            raise EngineError(
                f"{len(self.reachable(0))} of {wanted} nodes are ready after {self._options.wait:g} s"
                + "".join(f"\n  {line}" for line in list(said)[-10:]),
                fix="start more nodes, or ask for fewer with flower.nodes; flower.wait is the patience",
            )

    def _look_around(self) -> None:
        """See which nodes are there, ask strangers who they are, and take in those that have answered."""
        before = self._online
        self._online = sorted(self._mail.grid.get_node_ids())
        self._events += self._registry.changes(before, self._online)
        under_way = set(self._registering.values())
        strangers = [n for n in self._online if not self._registry.is_known(n) and n not in under_way]
        question = wire.content({"experiment": self._experiment})
        letters = {node: Letter(node, wire.REGISTER, question) for node in strangers}
        sent, _ = self._mail.post(letters, "register")
        self._registering |= sent
        introduced: dict[int, Introduction] = {}
        for reply in self._mail.collect(list(self._registering)):
            node = self._registering.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or f"error {reply.error.code}")
                introduced[node] = Introduction.from_content(reply.content)
            except WireError as error:
                self._registry.refuse(node, f"node {node} was not taken in: {error.problem}")
        self._registry.introduce(introduced, self._online)

    def take_events(self) -> list[str]:
        events = [*self._registry.take_events(), *self._events, *self._mail.events]
        self._events, self._mail.events = [], []
        return events

    # --- the three verbs ---------------------------------------------------------------------------------

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        clients = schedule(order.clients, self.population.sizes)
        uses_model = any(signal.uses_model for signal in order.signals)
        arrays = wire.array_record({wire.MODEL: order.parameters}) if uses_model else None
        type = f"query.{order.signals[0].name}" if len(order.signals) == 1 else wire.SIGNALS
        letters = {}
        for client in clients.tolist():
            fields = self._order(client, order.place, order.lr, order.signals).to_fields()
            letters[client] = Letter(self._registry.nodes[client], type, wire.content(fields, arrays))
        widths = {signal.name: signal.width(self.population) for signal in order.signals}
        values: dict[int, dict[str, Floats]] = {}
        failures = []

        def decode(client: int, content: RecordDict) -> Measured:
            return Measured.from_record(_checked(content, client, order.place), widths)

        for client, answer in self._exchange(letters, order.place, decode):
            if isinstance(answer, Failed):
                failures.append(answer)
                self._events.append(f"client {client} was asked in vain: {answer.reason}")
                continue
            values[client] = answer.values
            if any(PROBE in signal.client_state for signal in order.signals):
                self._probes[client] = version_of(order.place)
        return collect_replies(values, order.signals, self.population), failures

    def train(self, order: TrainOrder) -> Iterator[Trained | Failed]:
        population = self.population
        clients = schedule(order.clients, population.sizes)
        report = tuple(signal for signal in order.report if not signal.in_update)
        down = {wire.MODEL: order.parameters}
        if order.broadcast is not None:
            down[wire.BROADCAST] = order.broadcast
        arrays = wire.array_record(down)
        letters = {}
        for client in clients.tolist():
            fields = self._order(client, order.place, order.lr, report).to_fields()
            letters[client] = Letter(self._registry.nodes[client], wire.TRAIN, wire.content(fields, arrays))
        self._rows = np.sort(clients)
        self._movements = np.empty((len(clients) if order.keep_all else 0, self._spec.size), dtype=np.float32)
        widths = {signal.name: signal.width(population) for signal in report}

        def decode(client: int, content: RecordDict) -> _Decoded:
            record, size = _checked(content, client, order.place), int(population.sizes[client])
            names = (wire.MODEL, *self.algorithm.extra)
            return _Decoded(
                Work.from_record(record, self.training.steps_for(size), self.training.samples_for(size)),
                Measured.from_record(record, widths),
                wire.arrays_of(content, names, self._spec.size),
            )

        arrived: dict[int, _Decoded | Failed] = {}
        exchange = self._exchange(letters, order.place, decode)
        for client in clients.tolist():
            # Answers come in any order; sums must not depend on it.
            while client not in arrived:
                other, answer = next(exchange)
                arrived[other] = answer
            answer = arrived.pop(client)
            yield answer if isinstance(answer, Failed) else self._trained(client, answer, order)
        self._probes.clear()

    def matrix(self, clients: Ints) -> Vector:
        for row, slot in enumerate(np.searchsorted(self._rows, clients)):
            if row != slot:
                self._movements[row] = self._movements[slot]
        return self._movements[: len(clients)]

    def evaluate(self, parameters: Vector) -> Evaluation:
        if self._options.evaluate == "clients":
            return self._evaluate_on_clients(parameters)
        data = self._ingredients.data
        if not len(data.dataset.test):
            raise ConfigError(
                "the server has no test data to evaluate on",
                fix='set evaluate = "clients" in the section [flower]',
            )
        with single_threaded():
            predicted, losses = predictions(self._runtime, torch.from_numpy(parameters))
        sums = summarise(data, predicted, losses)
        if data.clients:
            return sums
        correct, count = np.zeros((2, self.population.clients), dtype=np.int64)
        loss: Floats = np.zeros(self.population.clients)
        return replace(sums, client_correct=correct, client_loss_sum=loss, client_count=count)

    def _evaluate_on_clients(self, parameters: Vector) -> Evaluation:
        data, clients = self._ingredients.data, self.population.clients
        groups = data.classes * (data.dataset.attribute_values or 0)
        place = Place(0, 0, 0)
        arrays = wire.array_record({wire.MODEL: parameters})
        letters = {}
        for client in self.reachable(0).tolist():
            if self._registry.tested[client]:
                fields = self._order(client, place, 0.0, ()).to_fields()
                letters[client] = Letter(self._registry.nodes[client], wire.EVALUATE, wire.content(fields, arrays))

        def decode(client: int, content: RecordDict) -> Scores:
            record = _checked(content, client, place)
            return Scores.from_record(record, data.classes, groups, self._registry.tested[client])

        answers: dict[int, Scores] = {}
        for client, answer in self._exchange(letters, place, decode):
            if isinstance(answer, Failed):
                self._events.append(f"client {client} did not evaluate: {answer.reason}")
            else:
                answers[client] = answer
        return _summed(dict(sorted(answers.items())), clients, data.classes, data.dataset.attribute_values)

    # --- exchanges ---------------------------------------------------------------------------------------

    def _order(self, client: int, place: Place, lr: float, signals: tuple[Signal, ...]) -> Order:
        return Order(
            experiment=self._experiment,
            client=client,
            key=self._registry.key(client),
            place=place,
            lr=lr,
            signals=signals,
            state=self._states.get(client, ""),
            probe=self._probes.get(client, ""),
        )

    def _exchange(
        self, letters: dict[int, Letter], place: Place, decode: Callable[[int, RecordDict], T]
    ) -> Iterator[tuple[int, T | Failed]]:
        """Answers as they come, decoded; what is missing or cannot be understood is a failure."""
        for client, content in self._mail.exchange(letters, version_of(place)):
            if isinstance(content, NoAnswer):
                yield client, Failed(client, content.reason)
                continue
            try:
                yield client, decode(client, content)
            except WireError as error:
                yield client, Failed(client, f"its answer was refused: {error.problem}")

    def _trained(self, client: int, answer: _Decoded, order: TrainOrder) -> Trained:
        movement = answer.vectors[wire.MODEL]
        averaged = self._spec.averaged
        with np.errstate(invalid="ignore", over="ignore"):  # the guard judges what is not finite
            movement[averaged] -= order.parameters[averaged]
        if order.keep_all:
            row = self._movements[np.searchsorted(self._rows, client)]
            row[:] = movement
            movement = row
        if self.algorithm.client_state:
            self._states[client] = version_of(order.place)
        if answer.measured.lost:
            self._events.append(f"client {client} had lost its state and trained like a new one")
        contained = measure_on_update(
            [signal for signal in order.report if signal.in_update],
            order,
            movement,
            TrainOutcome(steps=answer.work.steps, samples=answer.work.samples),
            population=self.population,
            training=self.training,
        )
        reports = answer.measured.values | contained
        return Trained(
            client=client,
            movement=movement,
            steps=answer.work.steps,
            samples=answer.work.samples,
            reports={signal.name: reports[signal.name] for signal in order.report},
            credited_steps=answer.work.credited_steps,
            extra={name: answer.vectors[name] for name in self.algorithm.extra},
        )

    # --- checkpoints -------------------------------------------------------------------------------------

    def end_round(self) -> None:
        self._probes.clear()

    def state_dict(self) -> State:
        return {"registry": self._registry.state_dict(), "states": dict(self._states)}

    def load_state_dict(self, values: State) -> None:
        self._registry.load_state_dict(values["registry"])
        self._states = dict(values["states"])


def _checked(content: RecordDict, client: int, place: Place) -> ConfigRecord:
    """The record of an answer, if it answers this order."""
    record = wire.record_of(content)
    said = (wire.take(record, "client", int), wire.take(record, "place", str))
    if said != (client, version_of(place)):
        raise WireError(f"it answers exchange {said[1]} as client {said[0]}")
    return record


def _summed(answers: dict[int, Scores], clients: int, classes: int, attributes: int | None) -> Evaluation:
    confusion = np.zeros((classes, classes), dtype=np.int64)
    correct, count = np.zeros((2, clients), dtype=np.int64)
    loss: Floats = np.zeros(clients)
    group_correct, group_count = np.zeros((2, classes * (attributes or 0)), dtype=np.int64)
    for client, tested in answers.items():
        confusion += tested.confusion
        correct[client], count[client] = np.trace(tested.confusion), tested.confusion.sum()
        loss[client] = tested.loss_sum
        group_correct, group_count = group_correct + tested.group_correct, group_count + tested.group_count
    shape = (classes, attributes or 0)
    return Evaluation(
        confusion,
        float(loss.sum()),
        correct,
        loss,
        count,
        group_correct=group_correct.reshape(shape) if attributes else None,
        group_count=group_count.reshape(shape) if attributes else None,
    )
