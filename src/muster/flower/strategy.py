"""Muster's selection and aggregation for your own Flower app: `MusterStrategy` in place of `FedAvg`.

The client app stays as it is: it trains on the arrays that it gets, and sends them back with `num-examples`. So
only signals that the server computes from updates can be used, and those that the app says it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from muster.aggregation.base import Aggregator
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError, EngineError, MusterError
from muster.engine.base import AskOrder, Engine, Evaluation, Failed, TrainOrder, collect_replies, schedule
from muster.flower.cohort import CohortMovements, in_order
from muster.flower.mail import Letter, Mail, NoAnswer, Sent
from muster.flower.records import examples_of, metrics_of, only_arrays, spec_of_arrays, to_arrays, to_vector
from muster.flower.update_signals import measure_on_update
from muster.flower.wire import WireError, printable, version_of
from muster.pacing import Pacing, Synchronous, pacings
from muster.selection.base import Selector, selectors
from muster.server.limits import ClientLimits
from muster.server.loop import Observer, Server
from muster.server.result import Result
from muster.signals.base import LARGEST, Replies, Signal
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.training.context import TrainOutcome
from muster.updates.filters import Filter, named
from muster.updates.guard import Guard
from muster.updates.table import ANSWER_FIELDS, Updates

if TYPE_CHECKING:
    from flwr.serverapp import Grid

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class StrategyResult:
    """What `start` returns: the model as Flower's strategies return it, and Muster's result."""

    arrays: ArrayRecord
    #: Selections, metrics, costs and disclosures of every round; `muster.report` takes it.
    result: Result


@dataclass
class MusterStrategy:
    """Selects and aggregates with Muster's methods on any Flower app that trains and sends `num-examples`."""

    selector: Selector
    aggregator: Aggregator | None = None
    seed: int = 0
    guard: Guard | None = None
    #: What happens to updates on the server, in this order, between the guard and the aggregator. Filters of the
    #: client's side are refused: your own client app does not run them.
    filters: Sequence[Filter] = ()
    #: How far clients are believed.
    limits: ClientLimits | None = None
    #: Only the synchronous one works here: the server waits for every client until `timeout` has passed.
    pacing: Pacing | None = None
    #: Names of the signals that the client app answers: to `query.<name>` with a metric of that name when asked,
    #: or as a metric of that name in the reply to a training.
    signals: Sequence[str] = ()
    #: Clients evaluate the global model after every round (the app's `evaluate`); False: no one does, unless
    #: `start` gets an `evaluate_fn`.
    federated_evaluation: bool = True
    #: Wait for this many nodes before round 1 (None: as many as the selector wants in a round), and how long.
    min_nodes: int | None = None
    wait: float = 300.0
    weighted_by_key: str = "num-examples"
    #: Name of the classification layer, where the last weight matrix is not it.
    final_layer: str | None = None
    observers: Sequence[Observer] = ()

    def start(  # noqa: PLR0917 (as Flower's strategies have it)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> StrategyResult:
        """Run rounds on the nodes behind a grid; the arguments are those of Flower's strategies."""
        self._check()
        aggregator = self.aggregator or FedAvg()
        engine = RecordsEngine(
            Mail(grid, deadline=timeout),
            initial_arrays,
            signals=self.signals,
            federated_evaluation=self.federated_evaluation,
            weighted_by_key=self.weighted_by_key,
            final_layer=self.final_layer,
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            evaluate_fn=evaluate_fn,
            limits=self.limits or ClientLimits(),
        )
        for signal in (*self.selector.needs(), *aggregator.reports()):
            engine.check_signal(signal)  # sooner than the server does: before any node is waited for
        wanted = getattr(self.selector, "clients_per_round", 1) if self.min_nodes is None else self.min_nodes
        engine.wait_for_nodes(wanted, self.wait)
        server = Server(
            self.selector,
            aggregator,
            engine,
            seed=self.seed,
            guard=self.guard,
            filters=[step.settled(engine.population.clients, self.seed) for step in self.filters],
            limits=self.limits,
            observers=self.observers,
        )
        result = replace(server.run(num_rounds), name=selectors.name_of(self.selector))
        return StrategyResult(engine.to_arrays(result.parameters), result)

    def _check(self) -> None:
        """Refuse what is no method, and what your own client app cannot do: before any node is waited for."""
        kinds: tuple[tuple[str, object, type, str], ...] = (
            ("selector", self.selector, Selector, "Terraform(clients_per_round=10)"),
            ("aggregator", self.aggregator, Aggregator, "SimProx()"),
        )
        for name, given, kind, example in kinds:
            if given is not None and not isinstance(given, kind):
                made = f"{given.__name__}(…)" if isinstance(given, type) and issubclass(given, kind) else ""
                raise ConfigError(
                    f"bad value for MusterStrategy({name}=…): {given!r}",
                    expected=f"an object of class {kind.__name__}",
                    fix=f"make one: {made}" if made else f"for example {example}",
                )
        for name, step in named(self.filters):
            if step.side == "client":
                raise ConfigError(
                    f"the filter '{name}' acts on clients, and your own client app does not run it",
                    expected="filters of the server's side",
                    fix="give it side='server' if it can act there, add a mod of Flower to your client app "
                    "(docs/flower-privacy.md), or use Muster's client app (docs/flower.md)",
                )
        if self.limits is not None and self.limits.max_samples_over_median is not None:
            raise ConfigError(
                "MusterStrategy cannot bound sample counts by their median: clients state them with their answers",
                fix="use max_samples, or max_weight of the aggregation",
            )
        if self.pacing is not None and not isinstance(self.pacing, Synchronous):
            raise ConfigError(
                f"MusterStrategy cannot keep the pacing '{pacings.name_of(self.pacing)}': it waits until every "
                "client has answered",
                expected="no pacing, or the synchronous one",
                fix="bound the wait with start(timeout=…), or use Muster's client app, where every pacing works "
                "(docs/flower.md)",
            )


@dataclass(frozen=True)
class _UnderWay:
    """A training whose letters are sent, and whose answers are not collected yet."""

    order: TrainOrder
    #: Clients, in the order in which their answers are handed over → learning rates.
    rates: dict[int, float]
    cohort: CohortMovements
    sent: Sent


class RecordsEngine(Engine):
    """Clients that know nothing about Muster: they train, and perhaps evaluate, on array records."""

    def __init__(
        self,
        mail: Mail,
        initial: ArrayRecord,
        *,
        signals: Sequence[str],
        federated_evaluation: bool,
        weighted_by_key: str,
        final_layer: str | None,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
        limits: ClientLimits,
    ) -> None:
        self._limits = limits
        self._mail, self._answered, self._key = mail, tuple(signals), weighted_by_key
        self._federated_evaluation = federated_evaluation
        self._train_config, self._evaluate_config, self._evaluate_fn = train_config, evaluate_config, evaluate_fn
        self._spec = spec_of_arrays(initial, final_layer)
        self._dtypes = {name: str(array.dtype) for name, array in initial.items()}
        self._initial = to_vector(initial, self._spec)
        self._nodes: list[int] = []
        self._online: set[int] = set()
        self._sizes: Ints = np.empty(0, dtype=np.int64)
        self._round = 0
        #: The training that is being collected, or was last.
        self._cohort: CohortMovements | None = None
        self._under_way: list[_UnderWay] = []
        self._events: list[str] = []

    def to_arrays(self, flat: Vector) -> ArrayRecord:
        return to_arrays(flat, self._spec, self._dtypes)

    @property
    def population(self) -> Population:
        # What the app calls its loss is its own affair.
        return Population(self._sizes, self._spec.final_outputs or 1, self._spec, rounds=0, negative_losses=True)

    @property
    def training(self) -> LocalTraining:
        lr = self._train_config.get("lr")
        return LocalTraining(lr=lr) if isinstance(lr, float) and lr > 0 else LocalTraining()

    @property
    def algorithm(self) -> LocalAlgorithm:
        return Plain()

    @property
    def trains_as_told(self) -> bool:
        return False  # how, is the app's own affair

    def check_signal(self, signal: Signal) -> None:
        """Only what the server computes from updates, and what the client app says it answers."""
        if not signal.in_update and signal.name not in self._answered:
            raise ConfigError(
                f"the methods need the signal '{signal.name}', which your own client app does not answer",
                expected="signals that the server computes from updates, or that your app answers",
                fix=f"answer `query.{signal.name}` in your client app and name it in MusterStrategy(signals=…)"
                ", or use Muster's client app (docs/flower.md)",
            )

    def describe(self) -> str:
        return f"Flower nodes with their own client app, {len(self._online)} of {len(self._nodes)} are there"

    def initial_parameters(self) -> Vector:
        return self._initial.copy()

    def reachable(self, round: int) -> Ints:
        there = [client for client, node in enumerate(self._nodes) if node in self._online]
        return np.array(there, dtype=np.int64)

    def wait_for_nodes(self, wanted: int, seconds: float) -> None:
        if not self._mail.wait_until(lambda: self._look_around() >= wanted, seconds):
            raise EngineError(
                f"{len(self._online)} of {wanted} nodes are there after {seconds:g} s",
                fix="start more nodes, lower the selector's clients_per_round, or set MusterStrategy(min_nodes=…)",
            )

    def begin_round(self, round: int) -> None:
        self._round = round
        self._mail.drop_late()
        self._look_around()

    def _look_around(self) -> int:
        """A node's client id is its place in the order of first appearance; newcomers come last."""
        self._online = set(self._mail.grid.get_node_ids())
        newcomers = sorted(self._online.difference(self._nodes))
        self._nodes += newcomers
        # A client's size is not known before its first training; 1 until then.
        self._sizes = np.concatenate([self._sizes, np.ones(len(newcomers), dtype=np.int64)])
        return len(self._online)

    def take_events(self) -> list[str]:
        events = [*self._events, *self._mail.events]
        self._events, self._mail.events = [], []
        return events

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        arrays, config = self.to_arrays(order.parameters), self._config(self._train_config)
        values: dict[int, dict[str, Floats]] = {int(client): {} for client in order.clients}
        failures: dict[int, Failed] = {}
        for signal in order.signals:
            still = [client for client in values if client not in failures]
            letters = self._letters(still, f"query.{signal.name}", arrays, config)
            for client, content in self._mail.exchange(letters, f"{version_of(order.place)}.{signal.name}"):
                try:
                    values[client][signal.name] = self._value(_checked(content), signal)
                except Exception as error:
                    failures[client] = Failed(client, _why(error))
        answered = {client: row for client, row in values.items() if client not in failures}
        replies, misshapen = collect_replies(answered, order.signals, self.population)
        return replies, [*failures.values(), *misshapen]

    def start(self, order: TrainOrder) -> None:
        clients = schedule(order.clients, self._sizes)
        config, arrays = self._config(self._train_config), self.to_arrays(order.parameters)
        rates = dict(zip(clients.tolist(), order.rates(clients).tolist(), strict=True))
        if order.lr_factors is None:
            letters = self._letters(clients.tolist(), "train", arrays, config)
        else:
            self._check_rates()
            letters = {}
            for client, lr in rates.items():
                letters |= self._letters([client], "train", arrays, ConfigRecord({**config, "lr": lr}))
        sent = self._mail.send(letters, version_of(order.place))
        self._under_way.append(_UnderWay(order, rates, CohortMovements(order, self._spec), sent))

    def collect(self) -> Iterator[Updates | Failed]:
        while self._under_way:
            training = self._under_way.pop(0)
            self._cohort = training.cohort
            clients = np.array(list(training.rates), dtype=np.int64)
            for _, answer in in_order(clients, self._answers(training)):
                yield answer

    def _answers(self, training: _UnderWay) -> Iterator[tuple[int, Updates | Failed]]:
        for client, content in self._mail.receive(training.sent):
            try:
                answer: Updates | Failed = self._trained(client, _checked(content), training)
            except Exception as error:
                answer = Failed(client, _why(error))
            yield client, answer

    def matrix(self, clients: Ints) -> Vector:
        assert self._cohort is not None
        return self._cohort.matrix(clients)

    def settle(self, used: Ints, refused: Ints) -> None:
        """These clients keep nothing that Muster knows about."""

    def evaluate(self, parameters: Vector) -> Evaluation:
        nothing = np.zeros(0, dtype=np.int64)
        measured = self._measured_by_clients(parameters) if self._federated_evaluation else {}
        if self._evaluate_fn is not None:
            measured |= _numbers(self._evaluate_fn(self._round + 1, self.to_arrays(parameters)) or {})
        return Evaluation(nothing.reshape(0, 0), 0.0, nothing, np.zeros(0), nothing, measured=measured)

    def _measured_by_clients(self, parameters: Vector) -> dict[str, float]:
        """Means of all metrics, weighted by the clients' numbers of test samples."""
        key = self._key
        letters = self._letters(
            self.reachable(0).tolist(), "evaluate", self.to_arrays(parameters), self._config(self._evaluate_config)
        )
        rows: dict[int, dict[str, float]] = {}
        weights: dict[int, int] = {}
        for client, content in self._mail.exchange(letters, f"{self._round}.evaluate"):
            try:
                metrics = metrics_of(_checked(content))
                weights[client] = examples_of(metrics, key)
                rows[client] = _believable(_numbers(metrics))
            except Exception as error:
                self._events.append(f"client {client} did not evaluate: {_why(error)}")
        means: dict[str, float] = {}
        for name in sorted(set().union(*rows.values()) - {key}):
            # A client that leaves a metric out does not take it away from the others.
            stating = [client for client in sorted(rows) if name in rows[client]]
            share = self._limits.counted(np.array([weights[client] for client in stating]))
            means[name] = float(np.array([rows[client][name] for client in stating]) @ share / share.sum())
        return means

    def _letters(
        self, clients: Sequence[int], type: str, arrays: ArrayRecord, config: ConfigRecord
    ) -> dict[int, Letter]:
        content = RecordDict({"arrays": arrays, "config": config})
        return {client: Letter(self._nodes[client], type, content) for client in clients}

    def _config(self, given: ConfigRecord) -> ConfigRecord:
        return ConfigRecord({**given, "server-round": self._round + 1})

    def _value(self, content: RecordDict, signal: Signal) -> Floats:
        width = signal.width(self.population)
        values = np.atleast_1d(np.asarray(metrics_of(content).get(signal.name, []), dtype=np.float64))
        if values.shape != (width,):
            raise WireError(f"the metric '{signal.name}' has {values.size} numbers", expected=str(width))
        return values

    def _check_rates(self) -> None:
        lr = self._train_config.get("lr")
        if not (isinstance(lr, float) and lr > 0):
            raise ConfigError(
                f"the selection gives clients individual learning rates, but the client app's rate is {lr!r}",
                expected="a train_config with `lr`, a float above zero",
                fix="have the app train with the `lr` of its config, and give start() such a train_config",
            )

    def _trained(self, client: int, content: RecordDict, training: _UnderWay) -> Updates:
        order, metrics = training.order, metrics_of(content)
        size = examples_of(metrics, self._key)
        movement = training.cohort.movement(client, to_vector(only_arrays(content), self._spec))
        outcome = TrainOutcome(steps=1, samples=size)
        contained = measure_on_update(
            [signal for signal in order.report if signal.in_update],
            order,
            movement,
            outcome,
            lr=training.rates[client],
            population=self.population,
            training=self.training,
        )
        told = {s.name: self._value(content, s) for s in order.report if not s.in_update}
        stated = {name: getattr(outcome, name) for name in ANSWER_FIELDS}
        # Of an answer that can be used, and before anything is aggregated: weights are read from here.
        self._sizes[client] = size
        return Updates.of(client, size, movement, stated, reports=contained | told)


def _checked(content: RecordDict | NoAnswer) -> RecordDict:
    if isinstance(content, NoAnswer):
        raise WireError(content.reason)
    return content


def _why(error: Exception) -> str:
    """Why an answer is unusable. Whatever a client may have sent, the run continues."""
    if isinstance(error, WireError):
        return printable(error.problem)
    if isinstance(error, MusterError):  # the server's own mistake
        raise error
    return f"its answer cannot be judged ({type(error).__name__})"


def _believable(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics of one client, if they leave something of the others' in a mean."""
    for name, value in metrics.items():
        if not abs(value) <= LARGEST:
            raise WireError(
                f"its metric '{printable(name)}' is {value:g}", expected=f"a number within ±{LARGEST:g}"
            )
    return metrics


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
