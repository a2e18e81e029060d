"""Tasks of the local engine: what goes to workers and comes back, and the memory that they share."""

from __future__ import annotations

import copy
import math
import mmap
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, Vector
from muster.data.federated import FederatedData
from muster.engine.base import Place
from muster.engine.runtime import ClientRuntime, Facts, Job
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.world.devices import Devices


@dataclass
class Memory:
    """Arrays that the server and all workers see: the model goes down and movements come up without copies."""

    origin: torch.Tensor
    broadcast: torch.Tensor
    movements: torch.Tensor
    extra: torch.Tensor
    state: torch.Tensor

    @classmethod
    def allocate(cls, size: int, slots: int, extras: int, states: int, forked: bool) -> Memory:
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
class Message:
    """A task as it goes through the pipe: small, because everything large is in shared memory."""

    kind: str
    slot: int
    job: Job | None = None
    #: Lengths of the state vectors that the client has (by name), in the slot's state rows.
    present: dict[str, int] | None = None
    positions: Ints | None = None
    split: Literal["test", "train"] = "test"
    with_broadcast: bool = False


@dataclass(frozen=True)
class Questions:
    """Signals to measure on several clients that keep nothing for them between exchanges."""

    clients: Ints
    place: Place
    lr: float
    signals: tuple[Signal, ...]


@dataclass(frozen=True)
class Answer:
    """What comes back through the pipe."""

    facts: Facts | None = None
    values: dict[str, Floats] | None = None
    present: dict[str, int] | None = None
    predicted: tuple[Ints, Floats] | None = None


@dataclass(frozen=True)
class Recipe:
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


class TaskRunner:
    """Carries messages out with a client runtime, on shared memory. Lives in a worker, or in this process."""

    def __init__(self, recipe: Recipe, memory: Memory, names: tuple[str, ...]) -> None:
        self.runtime, self.memory, self.names = recipe.runtime(), memory, names

    def __call__(self, message: Any) -> Any:
        return self.ask_all(message) if isinstance(message, Questions) else self.serve(message)

    def ask_all(self, questions: Questions) -> list[dict[str, Floats]]:
        """The answers of each client, by signal."""
        jobs = [
            Job(client, questions.place, questions.lr, questions.signals) for client in questions.clients.tolist()
        ]
        return [self.runtime.ask(job, self.memory.origin, {}) for job in jobs]

    def serve(self, message: Message) -> Answer:
        """Carry out a task for one client, or a part of an evaluation."""
        memory, slot = self.memory, message.slot
        if message.positions is not None:
            return Answer(predicted=self.runtime.predict(message.positions, memory.origin, message.split))
        assert message.job is not None
        state = self._state(slot, message.present or {})
        if message.kind == "ask":
            values = self.runtime.ask(message.job, memory.origin, state)
            return Answer(values=values, present=self._keep(slot, state))
        broadcast = memory.broadcast if message.with_broadcast else None
        facts = self.runtime.train(message.job, memory.origin, memory.movements[slot], state, broadcast)
        for row, name in enumerate(self.runtime.algorithm.extra):
            memory.extra[slot, row].copy_(torch.from_numpy(facts.extra[name]))
        slim = replace(facts, extra={})
        return Answer(facts=slim, present=self._keep(slot, state))

    def _state(self, slot: int, present: dict[str, int]) -> dict[str, Vector]:
        rows = self.memory.state[slot].numpy()
        return {name: rows[self.names.index(name), :length].copy() for name, length in present.items()}

    def _keep(self, slot: int, state: dict[str, Vector]) -> dict[str, int]:
        rows = self.memory.state[slot].numpy()
        for name, vector in state.items():
            rows[self.names.index(name), : len(vector)] = vector
        return {name: len(vector) for name, vector in state.items()}
