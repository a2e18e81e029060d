"""The vectorised engine: slices of the cohort train side by side, each as one batched computation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError
from muster.core.randomness import seeds
from muster.engine.base import Failed, TrainOrder, schedule
from muster.engine.local import LocalEngine
from muster.engine.pool import Crashed
from muster.engine.task import ClientTask
from muster.engine.tasks import Answered, TaskRunner
from muster.engine.vectorised.runner import SliceRunner
from muster.engine.vectorised.slices import cut, longest_slice
from muster.engine.vectorised.support import why_not
from muster.training.context import PROBES
from muster.updates.table import Updates


class VectorisedEngine(LocalEngine):
    """Runs clients of a dense model: one single-threaded task trains a whole slice of them.

    Slices are cut by the request alone and each is computed by one thread, so that results do not depend on the
    number of workers. They agree with those of the engine that trains clients one by one up to rounding.
    """

    _title: ClassVar[str] = "vectorised engine"
    arithmetic: ClassVar[str] = "side by side"
    _runner: ClassVar[type[TaskRunner]] = SliceRunner

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        recipe = self._recipe
        reason = why_not(recipe.module, recipe.algorithm, recipe.device, recipe.training, recipe.objective)
        if reason is not None:
            raise ConfigError(
                f"the vectorised engine cannot be used: {reason}", fix='use engine.kind = "processes"'
            )

    def _trained(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        clients = schedule(order.clients, self._data.sizes)
        longest = longest_slice(len(clients), self._spec.size)
        parts = [clients[part] for part in cut(self._data.sizes[clients], self.training, longest)]
        # A ring of as many places as slices may be under way, each with room for the longest.
        memory = self._ready(len(clients) if order.keep_all else min(len(parts), self._ring) * longest)
        memory.send(order.parameters, order.broadcast)
        self._rows = np.sort(clients)
        while parts:
            crashed: list[Ints] = []
            for task, answer in self._carried_out(order, parts, longest):
                if not isinstance(answer, Crashed):
                    yield from self._parts(task, answer)
                elif len(task) > 1:
                    crashed.append(task.clients)
                else:
                    yield Failed(task.client, answer.reason)
            # One client's crash is not its neighbours': each of them is tried alone, after all others.
            parts, longest = [client for part in crashed for client in part[:, None]], 1
        self._store.drop(*PROBES)

    def _carried_out(
        self, order: TrainOrder, parts: list[Ints], longest: int
    ) -> Iterator[tuple[ClientTask, Answered | Crashed]]:
        """Slices of at most `longest` clients, each with its answer."""
        clients, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts])
        places = len(parts) if order.keep_all else min(len(parts), self._ring)
        # With the whole matrix, a row belongs to a client; else a few places go round.
        slots = np.searchsorted(self._rows, clients) if order.keep_all else _ring_rows(parts, places, longest)
        words = seeds(self._recipe.seed, "train", order.place.round, order.place.iteration, clients=clients)
        whole = replace(order.task(clients), slots=slots, seeds=words)
        tasks = [whole.rows(slice(end - len(part), end)) for part, end in zip(parts, ends.tolist(), strict=True)]
        for number, answer in self._run(len(tasks), lambda number: self._lent(tasks[number]), places):
            yield tasks[number], answer

    def _parts(self, task: ClientTask, answer: Answered) -> Iterator[Updates]:
        """The answers of a slice: together where its rows of memory are neighbours, else one by one."""
        assert task.slots is not None
        first = int(task.slots[0])
        if (task.slots[1:] - task.slots[:-1] == 1).all():
            yield self._handed_over(task.clients, slice(first, first + len(task)), answer)
            return
        for k, slot in enumerate(task.slots.tolist()):
            row = slice(k, k + 1)
            yield self._handed_over(task.clients[row], slice(slot, slot + 1), answer.rows(row))


def _ring_rows(parts: list[Ints], places: int, longest: int) -> Ints:
    """For each client its row in a ring of places with room for `longest` clients each."""
    return np.concatenate([np.arange(len(part)) + (task % places) * longest for task, part in enumerate(parts)])
