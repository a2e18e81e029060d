"""The vectorised engine: slices of the cohort train side by side, each as one batched computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError
from muster.core.randomness import seeds
from muster.engine.base import Failed, Trained, TrainedSlice, TrainOrder, schedule
from muster.engine.local import LocalEngine
from muster.engine.pool import Crashed
from muster.engine.tasks import Memory, TaskRunner
from muster.engine.vectorised.runner import SliceAnswer, SliceRunner, SliceTask
from muster.engine.vectorised.slices import cut, longest_slice
from muster.engine.vectorised.support import why_not
from muster.training.context import PROBES


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
        reason = why_not(recipe.module, recipe.algorithm, recipe.device, recipe.training)
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
        parts = [clients[part] for part in cut(self._data.sizes[clients], self.training, longest)]
        # A ring of as many places as slices may be under way, each with room for the longest.
        memory = self._ready(len(clients) if order.keep_all else min(len(parts), self._ring) * longest)
        memory.send(order.parameters, order.broadcast)
        self._provisional.close()
        self._rows = np.sort(clients)
        while parts:
            crashed: list[Ints] = []
            for own, slots, answer in self._carried_out(order, parts, longest, memory):
                if not isinstance(answer, Crashed):
                    yield from self._handed_over(own, slots, answer, memory)
                elif len(own) > 1:
                    crashed.append(own)
                else:
                    yield Failed(int(own[0]), answer.reason)
            # One client's crash is not its neighbours': each of them is tried alone, after everybody else.
            parts, longest = [client for part in crashed for client in part[:, None]], 1
        self._store.drop(*PROBES)

    def _carried_out(
        self, order: TrainOrder, parts: list[Ints], longest: int, memory: Memory
    ) -> Iterator[tuple[Ints, Ints, SliceAnswer | Crashed]]:
        """Slices of at most `longest` clients, each with the rows of memory that were theirs and its answer."""
        clients, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts])
        places = len(parts) if order.keep_all else min(len(parts), self._ring)
        # With the whole matrix, a row belongs to a client; else a few places go round.
        rows = np.searchsorted(self._rows, clients) if order.keep_all else _ring_rows(parts, places, longest)
        words = seeds(self._recipe.seed, "train", order.place.round, order.place.iteration, clients=clients)
        rates, pull_factors = order.rates(clients), order.pulls(clients)

        def message(task: int) -> SliceTask:
            part = slice(ends[task] - len(parts[task]), ends[task])
            present = tuple(map(self._lend, clients[part].tolist(), rows[part].tolist()))
            return SliceTask(
                clients=clients[part],
                slots=rows[part],
                place=order.place,
                rates=rates[part],
                pull_factors=pull_factors[part],
                report=order.report,
                present=present if any(present) else None,
                with_broadcast=order.broadcast is not None,
                seeds=words[part],
            )

        for task, answer in self._run(len(parts), message, places):
            yield parts[task], rows[ends[task] - len(parts[task]) : ends[task]], answer

    def _handed_over(
        self, clients: Ints, slots: Ints, answer: SliceAnswer, memory: Memory
    ) -> Iterator[TrainedSlice]:
        if answer.present is not None:
            for client, slot, present in zip(clients.tolist(), slots.tolist(), answer.present, strict=True):
                self._take_back(self._provisional, client, slot, present)
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


def _ring_rows(parts: list[Ints], places: int, longest: int) -> Ints:
    """For each client its row in a ring of places with room for `longest` clients each."""
    return np.concatenate([np.arange(len(part)) + (task % places) * longest for task, part in enumerate(parts)])
