"""The local engine: all clients on this machine, in worker processes or in this process."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, State, Vector
from muster.core.component import Population
from muster.core.errors import CheckpointError, ConfigError, DataError, EngineError
from muster.core.parameters import FlatModel, ParameterSpec
from muster.data.federated import FederatedData
from muster.engine.base import (
    AskOrder,
    Engine,
    Evaluation,
    Failed,
    TrainOrder,
    collect_replies,
    narrowed,
    schedule,
)
from muster.engine.device import (
    MAX_WORKERS,
    WORKERS_PER_ACCELERATOR,
    available_cores,
    resolve_device,
    single_threaded,
)
from muster.engine.evaluation import Predictions, summarise, summarise_validation
from muster.engine.pool import Crashed, Handler, Pool, as_muster_error
from muster.engine.root import RootTrainer
from muster.engine.runtime import EVALUATION_BATCH
from muster.engine.task import ClientTask, Place, Predict, present_of
from muster.engine.tasks import Answered, ClientRecipe, SharedVectors, TaskRunner, question_groups
from muster.signals.base import Replies
from muster.training.augmentation import augmenter
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.training.context import PROBES
from muster.training.objectives import Classification, Objective
from muster.updates.clientstate import ClientStore
from muster.updates.filters import Filter
from muster.updates.table import Updates
from muster.world.devices import Devices


class LocalEngine(Engine):
    """Runs the clients of a partitioned data set on this machine."""

    _title: ClassVar[str] = "local engine"
    #: How results are computed: a run must continue in the same way to give the same bits.
    arithmetic: ClassVar[str] = "one by one"
    #: Makes what carries out tasks, in each worker.
    _runner: ClassVar[type[TaskRunner]] = TaskRunner

    def __init__(
        self,
        data: FederatedData,
        module: nn.Module,
        training: LocalTraining,
        algorithm: LocalAlgorithm | None = None,
        *,
        seed: int = 0,
        workers: int | None = None,
        device: str = "auto",
        devices: Devices | None = None,
        filters: Sequence[Filter] = (),
        objective: Objective = Classification(),  # noqa: B008 (frozen)
        client_memory: int = 2 * 1024**3,
        task_deadline: float | None = None,
        reason: str = "",
    ) -> None:
        """`workers`: None takes one per core, 0 runs clients in this process. `filters`: of the client's side.
        `objective`: what is learnt. `task_deadline`: seconds after which a worker counts as hanging.
        `reason`: why this engine."""
        if task_deadline is not None and not task_deadline > 0:
            raise ConfigError(
                f"bad value for 'engine.task_deadline': {task_deadline}", expected="a positive number"
            )
        self._data = data
        self._algorithm = algorithm or Plain()
        self._device = resolve_device(device)
        self._recipe = ClientRecipe(
            data, module, training, self._algorithm, seed, self._device, devices, tuple(filters), objective
        )
        # Workers would find out only when they are first used.
        augmenter(training.augmentation, data.dataset, torch.device("cpu"))
        self._count, self._reason = _worker_count(workers, self._device), reason
        self._task_deadline = task_deadline
        #: Whether clients may report something other than what their data say.
        self._tampered = any(step.lies or step.poisons for step in filters)
        # Metal cannot be used after a fork, and macOS in general does not promise that forks work.
        self._start_method = "fork" if sys.platform != "darwin" and self._device != "mps" else "spawn"
        flat = FlatModel(copy.deepcopy(module))
        self._spec, self._initial = flat.spec, flat.vector()
        self._population = Population(
            sizes=data.sizes,
            classes=data.classes,
            spec=self._spec,
            rounds=0,
            attributes=data.dataset.attribute_values,
            has_devices=devices is not None,
            class_labels=objective.class_labels,
            negative_losses=objective.may_be_negative,
        )
        if len(data.dataset.test) == 0:
            raise DataError("the data set has no test samples", expected="a test split to evaluate on")
        #: What clients keep between exchanges; and what the cohort in flight will keep, if it is used.
        self._store = ClientStore(memory_limit=client_memory)
        self._provisional = ClientStore(memory_limit=client_memory)
        self._names = (*self._algorithm.client_state, *PROBES)
        self._started: list[TrainOrder] = []
        self._rows: Ints = np.empty(0, dtype=np.int64)
        self._memory: SharedVectors | None = None
        self._pool: Pool | None = None
        self._end_pool: Finalize | None = None
        self._inline: Handler | None = None
        self._root: RootTrainer | None = None

    @property
    def population(self) -> Population:
        return self._population

    @property
    def training(self) -> LocalTraining:
        return self._recipe.training

    @property
    def algorithm(self) -> LocalAlgorithm:
        return self._algorithm

    @property
    def objective(self) -> Objective:
        return self._recipe.objective

    @property
    def filters(self) -> tuple[Filter, ...]:
        return self._recipe.filters

    @property
    def spec(self) -> ParameterSpec:
        return self._spec

    def describe(self) -> str:
        plural = "es" if self._count != 1 else ""
        where = f"{self._count} single-threaded worker process{plural}" if self._count else "in this process"
        return f"{self._title}, {where}, device {self._device}" + (f" ({self._reason})" if self._reason else "")

    def initial_parameters(self) -> Vector:
        return self._initial.copy()

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        # What the data alone determines takes one pass over it, whichever clients are asked.
        known = tuple(signal for signal in order.signals if signal.of_data and not self._tampered)
        measured = tuple(signal for signal in order.signals if signal not in known)
        clients, failures, columns = np.sort(order.clients), list[Failed](), dict[str, Floats]()
        if measured and len(clients):
            stateful = any(signal.client_state for signal in measured)
            answers, failures = (self._ask_each if stateful else self._ask_groups)(
                replace(order, signals=measured)
            )
            replies, misshapen = collect_replies(answers, measured, self.population)
            failures += misshapen
            clients, columns = replies.clients, dict(replies.values)
        for signal in known:
            columns[signal.name] = narrowed(signal.measure_all(self._data, clients))
        return Replies(clients, {signal.name: columns[signal.name] for signal in order.signals}), failures

    def _ask_each(self, order: AskOrder) -> tuple[dict[int, dict[str, Floats]], list[Failed]]:
        """One task per client: what it keeps between exchanges goes with it."""
        clients = schedule(order.clients, self._data.sizes)
        memory = self._ready(self._ring)
        memory.send(order.parameters)

        whole = replace(order.task(clients), slots=np.arange(len(clients)) % memory.slots)

        values: dict[int, dict[str, Floats]] = {}
        failures: list[Failed] = []
        for task, answer in self._run(len(clients), lambda task: self._lent(whole.row(task)), memory.slots):
            client = int(clients[task])
            if isinstance(answer, Crashed):
                failures.append(Failed(client, answer.reason))
                continue
            values[client], present = answer
            self._take_back(self._store, client, task % memory.slots, present)
        return values, failures

    def _ask_groups(self, order: AskOrder) -> tuple[dict[int, dict[str, Floats]], list[Failed]]:
        """Several clients per task: handing tasks over would take longer than most measurements."""
        memory = self._ready(self._ring)
        memory.send(order.parameters)
        values: dict[int, dict[str, Floats]] = {}
        failures: list[Failed] = []
        groups = question_groups(schedule(order.clients, self._data.sizes), self._data.sizes)
        while groups:
            crashed: list[tuple[Ints, str]] = []
            asked, groups = groups, []

            def message(task: int, asked: list[Ints] = asked) -> ClientTask:
                return order.task(asked[task])

            for task, answer in self._run(len(asked), message, 3 * self._count + 1):
                if isinstance(answer, Crashed):
                    crashed.append((asked[task], answer.reason))
                else:
                    values.update(zip(asked[task].tolist(), answer, strict=True))
            # One client's crash is not its neighbours': ask each of them alone.
            for group, reason in crashed:
                if len(group) > 1:
                    groups += list(group[:, None])
                else:
                    failures.append(Failed(int(group[0]), reason))
        return values, failures

    def start(self, order: TrainOrder) -> None:
        self._started.append(order)

    def collect(self) -> Iterator[Updates | Failed]:
        self._provisional.close()
        while self._started:
            # Removed first: a training that is broken off is not restarted by the next one.
            yield from self._trained(self._started.pop(0))

    def _trained(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        """The answers to one order."""
        clients = schedule(order.clients, self._data.sizes)
        memory = self._ready(len(clients) if order.keep_all else self._ring)
        memory.send(order.parameters, order.broadcast)
        window = len(clients) if order.keep_all else memory.slots
        self._rows = np.sort(clients)
        # With the whole matrix, row i belongs to the i-th client by id; else a few buffers go round.
        slots = np.argsort(np.argsort(clients)) if order.keep_all else np.arange(len(clients)) % memory.slots
        whole = replace(order.task(clients), slots=slots)
        for task, answer in self._run(len(clients), lambda task: self._lent(whole.row(task)), window):
            if isinstance(answer, Crashed):
                yield Failed(int(clients[task]), answer.reason)
            else:
                yield self._handed_over(clients[task : task + 1], slice(slots[task], slots[task] + 1), answer)
        self._store.drop(*PROBES)

    def _handed_over(self, clients: Ints, slots: slice, answer: Answered) -> Updates:
        """Answers with their vectors, which lie in neighbouring slots: views, so that filters work in place."""
        assert self._memory is not None
        memory = self._memory
        if answer.present is not None:
            places = range(slots.start, slots.stop)
            for client, slot, lengths in zip(clients.tolist(), places, answer.present, strict=True):
                self._take_back(self._provisional, client, slot, lengths)
        extra = {name: memory.extra.numpy()[slots, row] for row, name in enumerate(self._algorithm.extra)}
        return Updates(
            clients,
            self._data.sizes[clients],
            memory.movements.numpy()[slots],
            answer.numbers,
            answer.reports,
            extra,
            answer.changed,
        )

    def matrix(self, clients: Ints) -> Vector:
        assert self._memory is not None
        movements = self._memory.movements.numpy()
        for row, slot in enumerate(np.searchsorted(self._rows, clients)):
            if row != slot:  # an earlier one was refused: move up, rather than make a second matrix
                movements[row] = movements[slot]
        return movements[: len(clients)]

    def check_root(self) -> None:
        self._root_trainer()

    def root_movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        return self._root_trainer().movement(parameters, place, lr)

    def _root_trainer(self) -> RootTrainer:
        if self._root is None:
            recipe = self._recipe
            self._root = RootTrainer(recipe.data, recipe.module, recipe.training, recipe.seed)
        return self._root

    def settle(self, used: Ints, refused: Ints) -> None:
        for name in self._algorithm.client_state:
            for client in used.tolist():
                vector = self._provisional.get(name, client)
                if vector is not None:
                    self._store.put(name, client, vector)
        self._provisional.close()

    def evaluate(self, parameters: Vector) -> Evaluation:
        data = self._data
        self._ready(self._ring).send(parameters)
        predicted = self._predicted(np.arange(len(data.dataset.test)), "test")
        evaluation = summarise(data, predicted, self.objective)
        if data.validation is None:
            return evaluation
        labels = data.dataset.train.labels[data.validation]
        kept_back = summarise_validation(labels, self._predicted(data.validation, "train"))
        return replace(evaluation, validation=kept_back)

    def _predicted(self, positions: Ints, split: Literal["test", "train"]) -> Predictions:
        """What the model says about some samples of a split, in blocks of a fixed size."""
        count = len(positions)
        blocks = [slice(start, start + EVALUATION_BATCH) for start in range(0, count, EVALUATION_BATCH)]
        parts: list[Predictions] = []

        for _, answer in self._run(len(blocks), lambda task: Predict(positions[blocks[task]], split), len(blocks)):
            if isinstance(answer, Crashed):
                raise EngineError(
                    f"evaluation failed: {answer.reason}", fix="use fewer workers or a smaller model"
                )
            parts.append(answer)
        return Predictions.concatenated(parts)

    def end_round(self) -> None:
        self._store.drop(*PROBES)

    def take_events(self) -> list[str]:
        if self._pool is None:
            return []
        events, self._pool.events = self._pool.events, []
        return events

    def state_dict(self) -> State:
        return {"arithmetic": self.arithmetic, "clients": self._store.state_dict()}

    def load_state_dict(self, values: State) -> None:
        if values["arithmetic"] != self.arithmetic:
            raise CheckpointError(
                f"the run was started by an engine that trains clients {values['arithmetic']}, "
                f"and would continue with one that trains them {self.arithmetic}",
                fix="run it on the same device (engine.device) and with the same version of Muster as before",
            )
        self._store.load_state_dict(values["clients"])

    def close(self) -> None:
        if self._end_pool is not None:
            self._end_pool()
        self._pool = self._memory = self._inline = self._end_pool = None

    @property
    def _ring(self) -> int:
        """Buffers for answers that are consumed one by one: enough to keep all workers busy meanwhile."""
        return 3 * self._count + 1

    def _ready(self, slots: int) -> SharedVectors:
        """Memory with at least this many slots, and workers that see it."""
        slots = max(slots, self._ring)
        if self._memory is None or self._memory.slots < slots:
            self.close()
            forked = self._start_method == "fork"
            extras, states = len(self._algorithm.extra), len(self._names)
            self._memory = SharedVectors.allocate(self._spec.size, slots, extras, states, forked)
            factory = partial(self._runner, self._recipe, self._memory, self._names)
            if self._count == 0:
                self._inline = factory()
            else:
                _load_lazy_parts()
                self._pool = Pool(self._count, factory, self._start_method, self._task_deadline)
                # Also when the engine is never closed: a notebook drops it. Does nothing in forked workers.
                self._end_pool = Finalize(self, self._pool.close)
        return self._memory

    def _run(self, count: int, message: Callable[[int], Any], window: int) -> Iterator[tuple[int, Any]]:
        if self._pool is not None:
            yield from self._pool.run(count, message, window)
            return
        assert self._inline is not None
        for task in range(count):
            try:
                with single_threaded():
                    answer = self._inline(message(task))
            except Exception as error:
                raise as_muster_error(error) from error
            yield task, answer

    def _lent(self, task: ClientTask) -> ClientTask:
        """The task, with what its clients keep between exchanges in their slots."""
        if self._store.empty:
            return task
        assert task.slots is not None
        lengths = list(map(self._lend, task.clients.tolist(), task.slots.tolist()))
        return replace(task, present=present_of(lengths))

    def _lend(self, client: int, slot: int) -> dict[str, int]:
        """Put what the client keeps between exchanges into its slot."""
        assert self._memory is not None
        present = {}
        for row, name in enumerate(self._names):
            vector = self._store.get(name, client)
            if vector is not None:
                self._memory.state[slot, row].numpy()[: len(vector)] = vector
                present[name] = len(vector)
        return present

    def _take_back(self, store: ClientStore, client: int, slot: int, present: dict[str, int]) -> None:
        """Put what the client has in its slot now into a store."""
        assert self._memory is not None
        for name, length in present.items():
            store.put(name, client, self._memory.state[slot, self._names.index(name), :length].numpy())


def _worker_count(workers: int | None, device: str) -> int:
    if workers is None:
        return available_cores() if device == "cpu" else WORKERS_PER_ACCELERATOR
    if not 0 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers is {workers}", expected=f"0 (in this process) to {MAX_WORKERS}")
    return workers


def _load_lazy_parts() -> None:
    """PyTorch imports a second's worth of modules with the first optimiser: once, before workers are forked."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
