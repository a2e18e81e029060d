"""The local engine: all clients on this machine, in worker processes or in this process."""

from __future__ import annotations

import copy
import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import torch
from torch import nn

from muster.arrays import Floats, Ints, State, Vector
from muster.clientstate import ClientStore
from muster.component import Population
from muster.data.federated import FederatedData
from muster.devices import Devices
from muster.engine.base import AskOrder, Engine, Evaluation, Failed, Trained, TrainOrder, collect_replies, schedule
from muster.engine.device import WORKERS_PER_ACCELERATOR, available_cores, resolve_device, single_threaded
from muster.engine.evaluation import summarise
from muster.engine.pool import Crashed, Handler, Pool, as_muster_error
from muster.engine.runtime import EVALUATION_BATCH, ClientRuntime, Facts, Job
from muster.errors import ConfigError, DataError, EngineError
from muster.parameters import FlatModel, ParameterSpec
from muster.signals.base import PROBE, Replies
from muster.training.base import LocalAlgorithm, LocalTraining, Plain


@dataclass
class _Memory:
    """Arrays that the server and all workers see: the model goes down and movements come up without copies."""

    origin: torch.Tensor
    broadcast: torch.Tensor
    movements: torch.Tensor
    extra: torch.Tensor
    state: torch.Tensor

    @classmethod
    def allocate(cls, size: int, slots: int, extras: int, states: int, forked: bool) -> _Memory:
        def shared(*shape: int) -> torch.Tensor:
            numbers = max(1, int(np.prod(shape)))
            if not forked:
                pages: torch.Tensor = torch.zeros(numbers).share_memory_()  # type: ignore[no-untyped-call]
                return pages[: int(np.prod(shape))].view(shape)
            # Anonymous pages: touched only when used, gone when the last process is, however it ends.
            buffer = mmap.mmap(-1, 4 * numbers)
            return torch.frombuffer(buffer, dtype=torch.float32)[: int(np.prod(shape))].view(shape)

        return cls(
            shared(size),
            shared(size),
            shared(slots, size),
            shared(slots, extras, size),
            shared(slots, states, size + 1),
        )

    @property
    def slots(self) -> int:
        return len(self.movements)


@dataclass(frozen=True)
class _Message:
    """A task as it goes through the pipe: small, because everything large is in shared memory."""

    kind: str
    slot: int
    job: Job | None = None
    #: Lengths of the state vectors that the client has (by name), in the slot's state rows.
    present: dict[str, int] | None = None
    positions: Ints | None = None
    with_broadcast: bool = False


@dataclass(frozen=True)
class _Answer:
    """What comes back through the pipe."""

    facts: Facts | None = None
    values: dict[str, Floats] | None = None
    present: dict[str, int] | None = None
    predicted: tuple[Ints, Floats] | None = None


@dataclass(frozen=True)
class _Recipe:
    """What a client runtime is made of; it goes to the workers, which make their own."""

    data: FederatedData
    module: nn.Module
    training: LocalTraining
    algorithm: LocalAlgorithm
    seed: int
    device: str
    devices: Devices | None

    def runtime(self) -> ClientRuntime:
        return ClientRuntime(
            self.data,
            copy.deepcopy(self.module),
            self.training,
            self.algorithm,
            seed=self.seed,
            device=self.device,
            devices=self.devices,
        )


class _TaskRunner:
    """Carries messages out with a client runtime, on shared memory. Lives in a worker, or in this process."""

    def __init__(self, runtime: ClientRuntime, memory: _Memory, names: tuple[str, ...]) -> None:
        self.runtime, self.memory, self.names = runtime, memory, names

    def __call__(self, message: _Message) -> _Answer:
        memory, slot = self.memory, message.slot
        if message.positions is not None:
            return _Answer(predicted=self.runtime.predict(message.positions, memory.origin))
        assert message.job is not None
        state = self._state(slot, message.present or {})
        if message.kind == "ask":
            values = self.runtime.ask(message.job, memory.origin, state)
            return _Answer(values=values, present=self._keep(slot, state))
        broadcast = memory.broadcast if message.with_broadcast else None
        facts = self.runtime.train(message.job, memory.origin, memory.movements[slot], state, broadcast)
        for row, name in enumerate(self.runtime.algorithm.extra):
            memory.extra[slot, row].copy_(torch.from_numpy(facts.extra[name]))
        slim = replace(facts, extra={})
        return _Answer(facts=slim, present=self._keep(slot, state))

    def _state(self, slot: int, present: dict[str, int]) -> dict[str, Vector]:
        rows = self.memory.state[slot].numpy()
        return {name: rows[self.names.index(name), :length].copy() for name, length in present.items()}

    def _keep(self, slot: int, state: dict[str, Vector]) -> dict[str, int]:
        rows = self.memory.state[slot].numpy()
        for name, vector in state.items():
            rows[self.names.index(name), : len(vector)] = vector
        return {name: len(vector) for name, vector in state.items()}


class LocalEngine(Engine):
    """Runs the clients of a partitioned data set on this machine."""

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
        client_memory: int = 2 * 1024**3,
    ) -> None:
        """`workers`: None takes one per core, 0 runs clients in this process."""
        self._data = data
        self._algorithm = algorithm or Plain()
        self._device = resolve_device(device)
        self._recipe = _Recipe(data, module, training, self._algorithm, seed, self._device, devices)
        accelerated = self._device != "cpu"
        if workers is None:
            workers = WORKERS_PER_ACCELERATOR if accelerated else available_cores()
        if workers < 0:
            raise ConfigError(f"workers is {workers}", expected="0 (in this process) or more")
        self._count = workers
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
        )
        if len(data.dataset.test) == 0:
            raise DataError("the data set has no test samples", expected="a test split to evaluate on")
        self._store = ClientStore(memory_limit=client_memory)
        self._names = (*self._algorithm.client_state, PROBE)
        self._rows: Ints = np.empty(0, dtype=np.int64)
        self._memory: _Memory | None = None
        self._pool: Pool | None = None
        self._end_pool: Finalize | None = None
        self._inline: Handler | None = None

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
    def spec(self) -> ParameterSpec:
        return self._spec

    @property
    def worker_pids(self) -> list[int]:
        return self._pool.pids if self._pool else []

    def describe(self) -> str:
        if self._count == 0:
            return f"local engine, in this process, device {self._device}"
        plural = "es" if self._count != 1 else ""
        return f"local engine, {self._count} single-threaded worker process{plural}, device {self._device}"

    def initial_parameters(self) -> Vector:
        return self._initial.copy()

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        clients = schedule(order.clients, self._data.sizes)
        memory = self._ready(self._ring)
        memory.origin.copy_(torch.from_numpy(order.parameters))

        def message(task: int) -> _Message:
            client, slot = int(clients[task]), task % memory.slots
            job = Job(client, order.place, order.lr, order.signals)
            return _Message("ask", slot, job, self._lend(client, slot))

        values: dict[int, dict[str, Floats]] = {}
        failures: list[Failed] = []
        for task, answer in self._run(len(clients), message, memory.slots):
            client = int(clients[task])
            if isinstance(answer, Crashed):
                failures.append(Failed(client, answer.reason))
                continue
            self._take_back(client, task % memory.slots, answer.present)
            values[client] = answer.values
        return collect_replies(values, order.signals, self.population), failures

    def train(self, order: TrainOrder) -> Iterator[Trained | Failed]:
        clients = schedule(order.clients, self._data.sizes)
        memory = self._ready(len(clients) if order.keep_all else self._ring)
        memory.origin.copy_(torch.from_numpy(order.parameters))
        if order.broadcast is not None:
            memory.broadcast.copy_(torch.from_numpy(order.broadcast))
        window = len(clients) if order.keep_all else memory.slots
        self._rows = np.sort(clients)
        # With the whole matrix, row i belongs to the i-th client by id; else a few buffers go round.
        slots = np.argsort(np.argsort(clients)) if order.keep_all else np.arange(len(clients)) % memory.slots

        def message(task: int) -> _Message:
            client, slot = int(clients[task]), int(slots[task])
            job = Job(client, order.place, order.lr, order.report)
            present = self._lend(client, slot)
            return _Message("train", slot, job, present, with_broadcast=order.broadcast is not None)

        for task, answer in self._run(len(clients), message, window):
            client, slot = int(clients[task]), int(slots[task])
            if isinstance(answer, Crashed):
                yield Failed(client, answer.reason)
                continue
            self._take_back(client, slot, answer.present)
            facts = answer.facts
            yield Trained(
                client=client,
                movement=memory.movements[slot].numpy(),
                steps=facts.steps,
                samples=facts.samples,
                reports=facts.reports,
                credited_steps=facts.credited_steps,
                extra={name: memory.extra[slot, row].numpy() for row, name in enumerate(self._algorithm.extra)},
            )
        self._store.drop(PROBE)

    def matrix(self, clients: Ints) -> Vector:
        assert self._memory is not None
        movements = self._memory.movements.numpy()
        for row, slot in enumerate(np.searchsorted(self._rows, clients)):
            if row != slot:  # somebody before was refused: move up, rather than make a second matrix
                movements[row] = movements[slot]
        return movements[: len(clients)]

    def evaluate(self, parameters: Vector) -> Evaluation:
        test = self._data.dataset.test
        memory = self._ready(self._ring)
        memory.origin.copy_(torch.from_numpy(parameters))
        starts = range(0, len(test), EVALUATION_BATCH)
        blocks = [np.arange(start, min(start + EVALUATION_BATCH, len(test))) for start in starts]
        predicted, losses = np.empty(len(test), dtype=np.int64), np.empty(len(test))

        def message(task: int) -> _Message:
            return _Message("predict", 0, positions=blocks[task])

        for task, answer in self._run(len(blocks), message, len(blocks)):
            if isinstance(answer, Crashed):
                raise EngineError(
                    f"evaluation failed: {answer.reason}", fix="use fewer workers or a smaller model"
                )
            predicted[blocks[task]], losses[blocks[task]] = answer.predicted
        return summarise(self._data, predicted, losses)

    def end_round(self) -> None:
        self._store.drop(PROBE)

    def state_dict(self) -> State:
        return self._store.state_dict()

    def load_state_dict(self, values: State) -> None:
        self._store.load_state_dict(values)

    def close(self) -> None:
        if self._end_pool is not None:
            self._end_pool()
        self._pool = self._memory = self._inline = self._end_pool = None

    @property
    def _ring(self) -> int:
        """Buffers for answers that are consumed one by one: enough to keep all workers busy meanwhile."""
        return 3 * self._count + 1

    def _ready(self, slots: int) -> _Memory:
        """Memory with at least so many slots, and workers that see it."""
        slots = max(slots, self._ring)
        if self._memory is None or self._memory.slots < slots:
            self.close()
            forked = self._start_method == "fork"
            extras, states = len(self._algorithm.extra), len(self._names)
            self._memory = _Memory.allocate(self._spec.size, slots, extras, states, forked)
            factory = partial(_make_runner, self._recipe, self._memory, self._names)
            if self._count == 0:
                self._inline = factory()
            else:
                _load_lazy_parts()
                self._pool = Pool(self._count, factory, self._start_method)
                # Also when nobody closes the engine: a notebook drops it. Does nothing in forked workers.
                self._end_pool = Finalize(self, self._pool.close)
        return self._memory

    def _run(self, count: int, message: Callable[[int], _Message], window: int) -> Iterator[tuple[int, Any]]:
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

    def _lend(self, client: int, slot: int) -> dict[str, int]:
        """Put what the client keeps between exchanges into its slot."""
        assert self._memory is not None
        present = {}
        for row, name in enumerate(self._names):
            vector = self._store.get(name, client)
            if vector is not None:
                self._memory.state[slot, row, : len(vector)] = torch.from_numpy(vector)
                present[name] = len(vector)
        return present

    def _take_back(self, client: int, slot: int, present: dict[str, int]) -> None:
        assert self._memory is not None
        for name, length in present.items():
            row = self._names.index(name)
            self._store.put(name, client, self._memory.state[slot, row, :length].numpy().copy())


def _make_runner(recipe: _Recipe, memory: _Memory, names: tuple[str, ...]) -> Handler:
    return _TaskRunner(recipe.runtime(), memory, names)


def _load_lazy_parts() -> None:
    """PyTorch imports a second's worth of modules with the first optimiser: once, before workers are forked."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
