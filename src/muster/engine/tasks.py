"""Tasks of the local engine: what goes to workers and comes back, and the memory that they share."""

from __future__ import annotations

import copy
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, Vector
from muster.data.federated import FederatedData
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Predict, Present, present_of
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.objectives import Classification, Objective
from muster.updates.filters import Filter
from muster.updates.table import Column
from muster.world.devices import Devices


@dataclass
class SharedVectors:
    """Arrays that the server and all workers see: the model goes down and movements come up without copies."""

    origin: torch.Tensor
    broadcast: torch.Tensor
    movements: torch.Tensor
    extra: torch.Tensor
    state: torch.Tensor

    @classmethod
    def allocate(cls, size: int, slots: int, extras: int, states: int, forked: bool) -> SharedVectors:
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
            shared(slots, states, size + 2),
        )

    @property
    def slots(self) -> int:
        return len(self.movements)

    def send(self, parameters: Vector, broadcast: Vector | None = None) -> None:
        """Let every worker see the global model."""
        # By NumPy: PyTorch would start threads for it, which then spin for a while on the workers' cores.
        np.copyto(self.origin.numpy(), parameters)
        if broadcast is not None:
            np.copyto(self.broadcast.numpy(), broadcast)


@dataclass(frozen=True)
class ClientRecipe:
    """What a client runtime is made of; it goes to the workers, which make their own."""

    data: FederatedData
    module: nn.Module
    training: LocalTraining
    algorithm: LocalAlgorithm
    seed: int
    device: str
    devices: Devices | None
    #: Of the client's side.
    filters: tuple[Filter, ...] = ()
    objective: Objective = Classification()  # noqa: RUF009 (frozen)

    def runtime(self) -> ClientRuntime:
        return ClientRuntime(
            self.data,
            copy.deepcopy(self.module),
            self.training,
            self.algorithm,
            seed=self.seed,
            device=self.device,
            devices=self.devices,
            filters=self.filters,
            objective=self.objective,
        )


#: A task asks at most this many clients, with at most this many samples in sum.
GROUP_CLIENTS, GROUP_SAMPLES = 64, 2048
#: A request is cut into this many tasks at least, where it has as many clients.
FEWEST_GROUPS = 8


def question_groups(clients: Ints, sizes: Ints) -> list[Ints]:
    """The clients of a request in groups that keep their order: a function of the request alone."""
    longest = min(GROUP_CLIENTS, math.ceil(len(clients) / FEWEST_GROUPS))
    groups, start, samples = [], 0, 0
    for position, size in enumerate(sizes[clients].tolist()):
        if position > start and (position - start >= longest or samples + size > GROUP_SAMPLES):
            groups.append(clients[start:position])
            start, samples = position, 0
        samples += size
    return [*groups, clients[start:]]


class Answered(NamedTuple):
    """What comes back for a task apart from vectors, which lie in shared memory: one row per client."""

    #: The columns of `ANSWER_FIELDS`.
    numbers: Mapping[str, Column]
    reports: Mapping[str, Floats]
    #: Client-side filter → whether it changed the row.
    changed: Mapping[str, Ints]
    #: Which state each client has in its slot now. None: no client has any.
    present: Present | None

    def rows(self, which: slice) -> Answered:
        """The answers of some of the clients."""
        return Answered(
            {name: column[which] for name, column in self.numbers.items()},
            {name: column[which] for name, column in self.reports.items()},
            {name: column[which] for name, column in self.changed.items()},
            None if self.present is None else self.present[which],
        )


class TaskRunner:
    """Carries tasks out with a client runtime, on shared memory. Lives in a worker, or in this process."""

    def __init__(self, recipe: ClientRecipe, memory: SharedVectors, names: tuple[str, ...]) -> None:
        self.runtime, self.memory, self.names = recipe.runtime(), memory, names

    def __call__(self, task: ClientTask | Predict) -> Any:
        if isinstance(task, Predict):
            return self.runtime.predict(task.positions, self.memory.origin, task.split)
        if task.verb == "train":
            return self.train(task)
        return self.ask_all(task) if task.slots is None else self.ask(task)

    def ask_all(self, task: ClientTask) -> list[dict[str, Floats]]:
        """The answers of each client, by signal; no client keeps anything between exchanges."""
        return [self.runtime.ask(task.row(k), self.memory.origin, {}) for k in range(len(task))]

    def ask(self, task: ClientTask) -> tuple[dict[str, Floats], dict[str, int]]:
        """One client's answers, by signal, and which state it has in its slot now."""
        slot, state = self._begin(task)
        return self.runtime.ask(task, self.memory.origin, state), self._keep(slot, state)

    def train(self, task: ClientTask) -> Answered:
        """One client's answer, its vectors in its slot."""
        memory = self.memory
        slot, state = self._begin(task)
        broadcast = memory.broadcast if task.with_broadcast else None
        answer = self.runtime.train(task, memory.origin, memory.movements[slot], state, broadcast)
        for row, name in enumerate(self.runtime.algorithm.extra):
            memory.extra[slot, row].copy_(torch.from_numpy(answer.extra[name][0]))
        kept = self._keep(slot, state)
        return Answered(answer.numbers, answer.reports, answer.changed, present_of([kept]))

    def _begin(self, task: ClientTask) -> tuple[int, dict[str, Vector]]:
        assert task.slots is not None
        slot = int(task.slots[0])
        return slot, self._state(slot, {} if task.present is None else task.present[0])

    def _state(self, slot: int, present: dict[str, int]) -> dict[str, Vector]:
        rows = self.memory.state[slot].numpy()
        return {name: rows[self.names.index(name), :length].copy() for name, length in present.items()}

    def _keep(self, slot: int, state: dict[str, Vector]) -> dict[str, int]:
        rows = self.memory.state[slot].numpy()
        for name, vector in state.items():
            rows[self.names.index(name), : len(vector)] = vector
        return {name: len(vector) for name, vector in state.items()}
