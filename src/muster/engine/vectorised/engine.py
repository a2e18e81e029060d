"""The vectorised engine: slices of the cohort train side by side, each as one batched computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from muster.arrays import Ints
from muster.engine.base import Failed, Trained, TrainedSlice, TrainOrder, schedule
from muster.engine.local import LocalEngine
from muster.engine.pool import Crashed
from muster.engine.tasks import Memory, TaskRunner
from muster.engine.vectorised.runner import SliceAnswer, SliceRunner, SliceTask
from muster.engine.vectorised.slices import cut, longest_slice
from muster.engine.vectorised.support import why_not
from muster.errors import ConfigError
from muster.randomness import seeds
from muster.signals.base import PROBE


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
        reason = why_not(recipe.module, recipe.algorithm, recipe.device)
        if reason is not None:
            raise ConfigError(
                f"the vectorised engine cannot be used: {reason}", fix='use engine.kind = "processes"'
            )

    def train(self, order: TrainOrder) -> Iterator[Trained | Failed]:
        for answer in self.train_slices(order):
            if isinstance(answer, Failed):
                yield answer
            else:
                yield from answer

    def train_slices(self, order: TrainOrder) -> Iterator[TrainedSlice | Failed]:
        clients = schedule(order.clients, self._data.sizes)
        longest = longest_slice(len(clients), self._spec.size)
        slices = cut(self._data.sizes[clients], self.training, longest)
        # A ring of as many places as slices may be under way, each with room for the longest.
        places = min(len(slices), self._ring)
        memory = self._ready(len(clients) if order.keep_all else places * longest)
        memory.send(order.parameters, order.broadcast)
        self._rows = np.sort(clients)
        rows = np.argsort(np.argsort(clients)) if order.keep_all else _ring_rows(slices, places, longest)

        place = order.place
        words = seeds(self._recipe.seed, "train", place.round, place.iteration, clients=clients)

        def message(task: int) -> SliceTask:
            part = slices[task]
            own, slots = clients[part], rows[part]
            present = tuple(map(self._lend, own.tolist(), slots.tolist()))
            return SliceTask(
                clients=own,
                slots=slots,
                place=order.place,
                lr=order.lr,
                report=order.report,
                present=present if any(present) else None,
                with_broadcast=order.broadcast is not None,
                seeds=words[part],
            )

        window = len(slices) if order.keep_all else places
        for task, answer in self._run(len(slices), message, window):
            part = slices[task]
            yield from self._handed_over(clients[part], rows[part], answer, memory)
        self._store.drop(PROBE)

    def _handed_over(
        self, clients: Ints, slots: Ints, answer: SliceAnswer | Crashed, memory: Memory
    ) -> Iterator[TrainedSlice | Failed]:
        if isinstance(answer, Crashed):
            yield from (Failed(client, answer.reason) for client in clients.tolist())
            return
        if answer.present is not None:
            for client, slot, present in zip(clients.tolist(), slots.tolist(), answer.present, strict=True):
                self._take_back(client, slot, present)
        contiguous = bool((np.diff(slots) == 1).all())
        # Rows must not be copied: the guard's clipping changes them where they are.
        for rows in [slice(0, len(slots))] if contiguous else [slice(k, k + 1) for k in range(len(slots))]:
            places = slice(int(slots[rows.start]), int(slots[rows.start]) + rows.stop - rows.start)
            yield TrainedSlice(
                clients=clients[rows],
                movements=memory.movements.numpy()[places],
                steps=answer.steps[rows],
                samples=answer.samples[rows],
                credited_steps=answer.credited_steps[rows],
                reports={name: values[rows] for name, values in answer.reports.items()},
                extra={n: memory.extra.numpy()[places, row] for row, n in enumerate(self._algorithm.extra)},
            )


def _ring_rows(slices: list[slice], places: int, longest: int) -> Ints:
    """For each client its row in a ring of places with room for `longest` clients each."""
    numbers = [np.arange(part.stop - part.start) + (task % places) * longest for task, part in enumerate(slices)]
    return np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)
