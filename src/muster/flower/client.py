"""What a node does with orders: the arithmetic is the client runtime's, which the local engine uses too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, RecordDict

from muster.config.experiment import Experiment
from muster.config.identity import client_fingerprint
from muster.core.arrays import Ints, Vector
from muster.core.errors import ConfigError
from muster.data.checks import check_data
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.engine.device import resolve_device, single_threaded
from muster.engine.evaluation import Predictions, summarise
from muster.engine.runtime import EVALUATION_BATCH, ClientRuntime
from muster.experiment.dry_batch import check_dry_batch
from muster.experiment.parts import Ingredients, build_ingredients
from muster.flower import wire
from muster.flower.budget import EpsilonBudget
from muster.flower.limits import Limits
from muster.flower.memory import NodeMemory
from muster.flower.wire import Introduction, Measured, Order, Scores, WireError, WrongNode
from muster.privacy.noise import with_own_entropy
from muster.training.context import PROBES
from muster.updates.update_noise import UpdateNoise

#: The hook with which clients bring their own data: (train, test), where test may be None.
ClientData = Callable[[Context], tuple[Samples, Samples | None]]


class OwnData(FederatedData):
    """One client's data, whatever the client's id in the federation."""

    def client(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().client(0)

    def client_attributes(self, client: int) -> Any:
        return super().client_attributes(0)


class Participant:
    """One client of a federation: its data, its model, and the verbs that a server may use."""

    def __init__(self, experiment: Experiment, context: Context, client_data: ClientData | None = None) -> None:
        ingredients = _ingredients(experiment)
        self.key = identity(context)
        self.budget = EpsilonBudget.of(context.node_config)
        self.limits = self.budget.demands(Limits.of(context.node_config))
        #: What happens to an update before it leaves; noise is the node's own.
        self.filters = tuple(step.on_node() for step in ingredients.filters)
        train, test = (client_data or partition_data(ingredients))(context)
        self.data = _own(ingredients.data.dataset, train, test)
        check_data(self.data)
        device = str(context.node_config.get("device", ingredients.options.device))
        self.runtime = ClientRuntime(
            self.data,
            copy.deepcopy(ingredients.module),
            ingredients.training,
            ingredients.algorithm,
            seed=experiment.seed,
            device=resolve_device(device),
            devices=ingredients.devices,
            filters=self.filters,
            objective=ingredients.objective,
        )
        self.spec = self.runtime.model.spec
        self.fingerprint = wire.agreement(client_fingerprint(experiment.described()), self.spec)
        check_dry_batch(ingredients.module, self.data, ingredients.training, ingredients.objective)
        self.limits.check_training(ingredients.training, ingredients.algorithm, self.spec, len(train))

    def register(self, content: RecordDict) -> RecordDict:
        """Say who this is, if server and client mean the same experiment."""
        self._check_experiment(wire.take(wire.record_of(content), "experiment", str))
        size, tested = len(self.data.dataset.train), len(self.data.dataset.test)
        return wire.content(Introduction(self.key, size, tested).to_fields())

    def train(self, content: RecordDict, memory: NodeMemory) -> RecordDict:
        algorithm = self.runtime.algorithm
        order = self._order(content, "train")
        arrays = self._arrays(content, (wire.MODEL, wire.BROADCAST))
        origin, movement = torch.from_numpy(arrays[wire.MODEL]), torch.empty(self.spec.size)
        state, lost = memory.state_for(order, algorithm.client_state)
        broadcast = torch.from_numpy(arrays[wire.BROADCAST]) if wire.BROADCAST in arrays else None
        trained = torch.empty(self.spec.size)
        with single_threaded():
            answer = self.runtime.train(order.task, origin, movement, state, broadcast, trained=trained)
        memory.trained(order, {name: state[name] for name in algorithm.client_state if name in state})
        # The model, not the movement, goes back: that is what Flower's mods (clipping, noise) work on.
        vectors = {wire.MODEL: trained.numpy(), **{name: rows[0] for name, rows in answer.extra.items()}}
        reports = Measured({name: rows[0] for name, rows in answer.reports.items()}, lost)
        fields = {**_echo(order), **wire.numbers_to_fields(answer), **reports.to_fields()}
        return wire.content(fields, wire.array_record(vectors))

    def ask(self, content: RecordDict, memory: NodeMemory) -> RecordDict:
        order = self._order(content)
        uses_model = any(signal.uses_model for signal in order.task.signals)
        arrays = self._arrays(content, (wire.MODEL,) if uses_model else ())
        origin = torch.from_numpy(arrays[wire.MODEL]) if uses_model else torch.zeros(self.spec.size)
        state, lost = memory.state_for(order, self.runtime.algorithm.client_state)
        with single_threaded():
            values = self.runtime.ask(order.task, origin, state)
        memory.asked(order, {name: state[name] for name in PROBES if name in state})
        return wire.content({**_echo(order), **Measured(values, lost).to_fields()})

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Sums over the client's own test data."""
        self.limits.check_evaluation()
        order = self._order(content)
        origin = torch.from_numpy(self._arrays(content, (wire.MODEL,))[wire.MODEL])
        test = self.data.dataset.test
        if not len(test):
            raise WireError(
                "this client has no test data", fix="evaluate on the server, or give the hook a test set"
            )
        with single_threaded():
            predicted = predictions(self.runtime, origin)
        sums = summarise(self.data, predicted, self.runtime.objective)
        answer = Scores(sums.confusion, sums.loss_sum)
        if sums.row_sums is not None:
            groups = np.zeros(0) if sums.row_sums.groups is None else sums.row_sums.groups
            answer = replace(answer, totals=sums.row_sums.total, group_totals=groups)
        if sums.group_correct is not None and sums.group_count is not None:
            answer = replace(answer, group_correct=sums.group_correct, group_count=sums.group_count)
        return wire.content({**_echo(order), **answer.to_fields()})

    def _order(self, content: RecordDict, verb: Literal["ask", "train"] = "ask") -> Order:
        order = Order.from_record(wire.record_of(content), verb, self.data.classes)
        self._check_experiment(order.experiment)
        if order.key != self.key:
            raise WrongNode(f"the message is for '{order.key}'", expected=f"this node is '{self.key}'")
        self.limits.check_order(order)
        if verb == "train":
            self.limits.check_update(self.filters, self.runtime.algorithm, self.spec)
        updates = [step for step in self.filters if isinstance(step, UpdateNoise)] if verb == "train" else []
        self.budget.spend(order.task.signals, updates)
        # The seed is the experiment's, and the server knows it: noise from it could be subtracted.
        signals = tuple(with_own_entropy(signal) for signal in order.task.signals)
        return replace(order, task=replace(order.task, signals=signals))

    def _check_experiment(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise WireError(
                f"server and client describe different experiments ({fingerprint} and {self.fingerprint})",
                expected="the same seed, data, partition, model, training, algorithm and filters of clients; and "
                "the same pretrained weights where parts of the model are frozen",
                fix="build both apps from the same config and the same files",
            )

    def _arrays(self, content: RecordDict, allowed: tuple[str, ...]) -> dict[str, Vector]:
        found = content.array_records.get(wire.ARRAYS, ArrayRecord())
        names = [name for name in allowed if name == wire.MODEL or name in found]
        arrays = wire.arrays_of(content, names, self.spec.size)
        for name, vector in arrays.items():
            if not np.isfinite(vector).all():
                raise WireError(f"the array '{name}' has values that are not finite")
        return arrays


def predictions(runtime: ClientRuntime, parameters: torch.Tensor, positions: Ints | None = None) -> Predictions:
    """What the model predicts, in blocks of a fixed size: for all test samples, or about some training samples."""
    split: Literal["test", "train"] = "test" if positions is None else "train"
    if positions is None:
        positions = np.arange(len(runtime.data.dataset.test))
    blocks = [positions[start : start + EVALUATION_BATCH] for start in range(0, len(positions), EVALUATION_BATCH)]
    return Predictions.concatenated([runtime.predict(block, parameters, split) for block in blocks])


def identity(context: Context) -> str:
    """Who a node says it is: its partition, or a name, from the node's own configuration."""
    for key in ("partition-id", "name"):
        if key in context.node_config:
            return f"{key}={context.node_config[key]}"
    raise ConfigError(
        "the node does not say which client it is",
        expected="`partition-id` or `name` in the node's configuration",
        fix="""start it with --node-config 'partition-id=0' or --node-config 'name="clinic-a"'""",
    )


def partition_data(ingredients: Ingredients) -> ClientData:
    """The default hook: a node has the part of the experiment's data set that its `partition-id` names."""
    data = ingredients.data

    def client_data(context: Context) -> tuple[Samples, Samples | None]:
        number = context.node_config.get("partition-id")
        if type(number) is not int or not 0 <= number < data.clients:
            raise ConfigError(
                f"the node's partition-id is {number!r}",
                expected=f"0 to {data.clients - 1}, or a client_data hook that brings the node's own data",
            )
        test = None
        if data.test_index is not None:
            test = _rows(data.dataset.test, data.test_index[number])
        return _rows(data.dataset.train, data.train_index[number]), test

    return client_data


@lru_cache(maxsize=2)
def _cached_ingredients(key: _Key) -> Ingredients:
    return build_ingredients(key.experiment)


@dataclass(frozen=True)
class _Key:
    """Experiments with the same fingerprint share data and model: virtual nodes of one process build them once."""

    fingerprint: str
    experiment: Experiment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _ingredients(experiment: Experiment) -> Ingredients:
    return _cached_ingredients(_Key(client_fingerprint(experiment.described()), experiment))


def _rows(samples: Samples, positions: Any) -> Samples:
    attributes = None if samples.attributes is None else samples.attributes[positions]
    return Samples(samples.features[positions], samples.labels[positions], attributes)


def _own(dataset: Dataset, train: Samples, test: Samples | None) -> OwnData:
    nothing = np.arange(0)
    mine = replace(dataset, train=train, test=_rows(dataset.test, nothing) if test is None else test)
    return OwnData(mine, Index.from_lists([np.arange(len(train))]))


def _echo(order: Order) -> dict[str, Any]:
    """Lets the server see which order an answer belongs to."""
    return {"client": order.client, "place": wire.version_of(order.place), "challenge": order.challenge}
