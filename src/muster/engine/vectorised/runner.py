"""Carries out tasks for slices of clients: training side by side, losses of many clients in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal, TypeAlias

import numpy as np
import torch

from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.randomness import seeded, seeds
from muster.engine.runtime import AUGMENTATION, model_of, numbers
from muster.engine.task import ClientTask, present_of
from muster.engine.tasks import Answered, ClientRecipe, SharedVectors, TaskRunner
from muster.engine.vectorised.algorithms import Done, States, finish, pull_of
from muster.engine.vectorised.chain import chain_of
from muster.engine.vectorised.stack import Stack, one_or_each
from muster.engine.vectorised.trainer import Augment, Outcomes, SliceData, needs_gradients, train_slice
from muster.signals.base import Signal
from muster.signals.losses import MeanLoss, mean_losses
from muster.signals.start_loss import StartLoss
from muster.training.context import PROBE, PROBE_VELOCITY, ClientContext, Trainings
from muster.updates.table import ANSWER_FIELDS, Column, Updates

#: The columns of `ANSWER_FIELDS`.
Numbers: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True)
class _Velocity:
    """SGD's velocity that trainings continue with: clients × trained numbers, and which clients have one."""

    values: torch.Tensor
    known: Bools


@dataclass(frozen=True)
class _Work:
    """What the clients of a slice have done, one number per client."""

    outcomes: Outcomes
    #: Steps of probes, and after how many steps the optimiser forgot its velocity.
    probed: Ints
    restarts: Ints


class SliceRunner(TaskRunner):
    """A task runner that trains all clients of a task side by side."""

    def __init__(self, recipe: ClientRecipe, memory: SharedVectors, names: tuple[str, ...]) -> None:
        super().__init__(recipe, memory, names)
        self._chain = chain_of(recipe.module)

    def ask_all(self, task: ClientTask) -> list[dict[str, Floats]]:
        """Losses under the global model in one pass over all clients; the rest client by client."""
        # A loss that comes out of the pass for another signal is measured with that one.
        shared = any(signal.evaluates and not isinstance(signal, MeanLoss) for signal in task.signals)
        batched = [s for s in task.signals if isinstance(s, MeanLoss) and not (shared and s.evaluates)]
        rest = tuple(signal for signal in task.signals if signal not in batched)
        if not batched or self.runtime.lies or any(signal.draws for signal in rest):
            return super().ask_all(task)
        self.runtime.enter(task.place.round)
        answers: list[dict[str, Floats]] = [{} for _ in task.clients]
        if rest:
            answers = super().ask_all(replace(task, signals=rest))
        rngs = [self.runtime.ask_rng(task.row(k)) for k in range(len(task))]
        for signal in batched:
            for answer, loss in zip(answers, self._losses(signal, task.clients, rngs), strict=True):
                answer[signal.name] = numbers([loss])
        return answers

    def _losses(self, signal: MeanLoss, clients: Ints, rngs: list[np.random.Generator]) -> Floats:
        runtime = self.runtime
        index, batch = runtime.data.train_index, runtime.training.batch_size
        parts = []
        for client, rng in zip(clients.tolist(), rngs, strict=True):
            own = index[client]
            chosen = signal.chosen(len(own), batch, rng)
            parts.append(own if chosen is None else own[chosen])
        features, labels = runtime.data.tensors(runtime.data.dataset.train, np.concatenate(parts))
        runtime.model.load(self.memory.origin)
        return mean_losses(runtime.model.module, features, labels, np.array([len(part) for part in parts]))

    # --- training ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def train(self, task: ClientTask) -> Answered:
        """The answers of all clients of the task, in its order."""
        asked = task
        self.runtime.enter(task.place.round)
        training, algorithm, layout = self.runtime.training, self.runtime.algorithm, self._chain.layout
        probed, skips = self._probes(task)
        sizes = self.runtime.data.sizes[task.clients]
        # Clients that continue from a probe have fewer steps left; the trainer wants the longest first.
        left = np.array([training.steps_for(size) for size in sizes.tolist()]) - skips
        order = np.argsort(-left, kind="stable")
        task = task.rows(order)
        assert task.slots is not None
        states = self._states(task)
        velocity = self._velocity(states)
        broadcast = self.memory.broadcast if task.with_broadcast else None
        pull = pull_of(algorithm, layout, states, broadcast, task.pull_factors)
        stack = self._stack(states, with_gradients=needs_gradients(training, pull))
        cohort = self._cohort(task, skips[order].tolist())
        outcomes = train_slice(
            self._chain,
            cohort,
            training,
            stack,
            lr=one_or_each(task.rates),
            pull=pull,
            velocity=None if velocity is None else velocity.values,
            losses=_losses_for(task.signals),
        )
        slots = torch.from_numpy(task.slots)
        moved = self._write_movements(stack, slots)
        done = Done(
            moved,
            outcomes.steps,
            task.rates,
            training,
            lambda row: self.runtime.local_gradient(task.row(row), self.memory.origin),
        )
        sent = finish(algorithm, layout, pull, states, done)
        if sent is not None:
            rows = torch.zeros(len(task), layout.spec.size)
            layout.scatter(sent, rows)
            self.memory.extra[:, 0].index_copy_(0, slots, rows)
        restarts = probed[order] if velocity is None else np.where(velocity.known, 0, probed[order])
        work = _Work(outcomes, probed[order], restarts)
        back = np.argsort(order)
        extra = np.array([algorithm.extra_samples(size) for size in sizes.tolist()], dtype=np.int64)
        stated = {"samples": outcomes.samples[back] + extra, "credited_steps": probed}
        stated |= {n: getattr(outcomes, n)[back] for n in ANSWER_FIELDS if n not in stated}
        said, changed = self._filtered(asked, stated)
        reports = self._told(task, self._reports(cohort, work, states, task))
        kept = [
            self._keep(slot, state) if state else {}
            for slot, state in zip(task.slots.tolist(), states, strict=True)
        ]
        present = present_of(kept)
        return Answered(
            said,
            {name: rows[back] for name, rows in reports.items()},
            changed,
            None if present is None else present[back],
        )

    def _told(self, task: ClientTask, measured: dict[str, Floats]) -> dict[str, Floats]:
        """What the clients report after they have measured."""
        if not self.runtime.lies or not measured:
            return measured
        rows = [
            self.runtime.told(task.row(k), {name: values[k] for name, values in measured.items()}, "report")
            for k in range(len(task))
        ]
        return {name: np.stack([row[name] for row in rows]) for name in measured}

    def _filtered(self, task: ClientTask, stated: Numbers) -> tuple[Numbers, Mapping[str, Ints]]:
        """The numbers as they are sent, and what was changed; a filter sees one client at a time, its vectors in
        shared memory."""
        if not self.runtime.filters:
            return stated, {}
        assert task.slots is not None
        nothing = np.empty((len(task), 0), dtype=np.float32)
        answer = Updates(task.clients, self.runtime.data.sizes[task.clients], nothing, stated)
        movements, extra = self.memory.movements.numpy(), self.memory.extra.numpy()
        sent = []
        for row, slot in enumerate(task.slots.tolist()):
            place = slice(slot, slot + 1)
            vectors = {name: extra[place, at] for at, name in enumerate(self.runtime.algorithm.extra)}
            whole = replace(answer.rows(slice(row, row + 1)), movements=movements[place], extra=vectors)
            done = self.runtime.filtered(task.row(row), whole)
            for at, name in enumerate(self.runtime.algorithm.extra):
                extra[slot, at] = done.extra[name][0]
            sent.append(done.without_vectors())
        table = Updates.concatenated(sent)
        return table.numbers, table.changed

    def _probes(self, task: ClientTask) -> tuple[Ints, Ints]:
        """Steps that probes took, and mini-batches that are left out for them, by client."""
        probes = np.zeros((len(task.clients), 2), dtype=np.int64)
        if task.present is not None and task.slots is not None:
            row = self.names.index(PROBE)
            for k, present in enumerate(task.present):
                if PROBE in present:
                    end = present[PROBE]
                    probes[k] = self.memory.state[task.slots[k], row, end - 2 : end].numpy()
        return probes[:, 0], probes[:, 1]

    def _velocity(self, states: States) -> _Velocity | None:
        """What the probes' optimisers continue with, zero for clients without; None where no client has any."""
        kept = [state.pop(PROBE_VELOCITY, None) for state in states]
        known = np.array([flat is not None for flat in kept])
        if not known.any():
            return None
        layout = self._chain.layout
        values = torch.zeros(len(states), len(layout.gather(self.memory.origin)))
        for row, flat in enumerate(kept):
            if flat is not None:
                values[row] = layout.gather(torch.from_numpy(flat))
        return _Velocity(values, known)

    def _states(self, task: ClientTask) -> list[dict[str, Vector]]:
        if task.present is None or task.slots is None:
            return [{} for _ in task.clients]
        return [self._state(slot, names) for slot, names in zip(task.slots.tolist(), task.present, strict=True)]

    def _stack(self, states: States, with_gradients: bool) -> Stack:
        """Rows that start from the global model, or from a probed one, which is forgotten with that."""
        layout, origin = self._chain.layout, self.memory.origin
        values = layout.gather(origin).repeat(len(states), 1)
        buffers = None if layout.spec.size == layout.spec.trainable.stop else origin.repeat(len(states), 1)
        for row, state in enumerate(states):
            probed = state.pop(PROBE, None)
            if probed is not None:
                flat = torch.from_numpy(probed[:-2])
                values[row] = layout.gather(flat)
                if buffers is not None:
                    buffers[row] = flat
        return Stack(layout, values, torch.zeros_like(values) if with_gradients else None, buffers, origin)

    def _cohort(self, task: ClientTask, skips: list[int]) -> SliceData:
        data, rows = self.runtime.data, range(len(task) if self._chain.draws else 0)
        assert task.seeds is not None
        samples, _ = data.train_index.of_many(task.clients)
        return SliceData(
            sizes=data.sizes[task.clients],
            orders=seeded(task.seeds),
            skips=skips,
            fetch=lambda positions: data.tensors(data.dataset.train, samples[positions]),
            generators=[torch.Generator().manual_seed(self.runtime.dropout_seed(task.row(k))) for k in rows],
            augment=self._augment(task, skips),
        )

    def _augment(self, task: ClientTask, skips: list[int]) -> Augment | None:
        """The draws that each client would make alone."""
        runtime, change, place, clients = self.runtime, self.runtime.augmenter, task.place, task.clients
        if change is None:
            return None
        sizes = runtime.data.sizes[clients].tolist()
        longest = max(runtime.training.steps_for(size) - skip for size, skip in zip(sizes, skips, strict=True))
        # steps × clients: the mini-batch of each client's training, which continues after those of a probe.
        steps = np.arange(longest)[:, None] + np.array(skips)
        coordinates = {"clients": np.tile(clients, longest), "steps": steps.reshape(-1)}
        words = seeds(runtime.seed, AUGMENTATION, place.round, place.iteration, **coordinates)
        words = words.reshape(*steps.shape, 4)

        def augment(samples: torch.Tensor, sizes: Ints, step: int) -> torch.Tensor:
            return change.of_many(samples, sizes.tolist(), seeded(words[step, : len(sizes)]))

        return augment

    def _write_movements(self, stack: Stack, slots: torch.Tensor) -> torch.Tensor:
        """Put the movements into shared memory; how far the trained numbers moved."""
        spec, layout, origin = stack.layout.spec, stack.layout, stack.origin
        movements, first = self.memory.movements, int(slots[0])
        if layout.is_whole and bool((slots == torch.arange(first, first + len(slots))).all()):
            # One pass over memory instead of two.
            return torch.sub(stack.values, origin, out=movements[first : first + len(slots)])
        moved = stack.values.sub_(layout.gather(origin))
        rows = moved
        if not layout.is_whole:
            rows = torch.zeros(len(moved), spec.size)
            if stack.buffers is not None:
                rows.copy_(stack.buffers)
                rows[:, spec.averaged] -= origin[spec.averaged]
            layout.scatter(moved, rows)
        movements.index_copy_(0, slots, rows)
        return moved

    def _reports(self, cohort: SliceData, work: _Work, states: States, task: ClientTask) -> dict[str, Floats]:
        """clients × width, by signal."""
        if not task.signals:
            return {}
        trainings = self._trainings(work, task)
        one_by_one = [task.row(k) for k in range(len(task))]
        # One stream per client: the signals of a report draw from it in turn.
        rngs = [self.runtime.report_rng(row) for row in one_by_one]
        found: dict[str, Floats] = {}
        for signal in task.signals:
            rows = signal.measure_trained(trainings)
            if rows is None and isinstance(signal, StartLoss):
                rows = self._start_losses(cohort)
            if rows is None:
                contexts = map(self.runtime.context, one_by_one, repeat(self.memory.origin), states, rngs)
                rows = np.stack([self._one(signal, *numbered, trainings) for numbered in enumerate(contexts)])
            found[signal.name] = rows
        return found

    def _trainings(self, work: _Work, task: ClientTask) -> Trainings:
        assert task.slots is not None
        outcomes = work.outcomes
        first = int(task.slots[0])
        movements = self.memory.movements.numpy()
        neighbours = bool((np.diff(task.slots) == 1).all())
        return Trainings(
            spec=self._chain.layout.spec,
            movements=movements[first : first + len(task.slots)] if neighbours else movements[task.slots],
            lr=task.rates,
            steps=outcomes.steps,
            samples=outcomes.samples,
            mean_loss=outcomes.mean_loss,
            mean_squared_loss=outcomes.mean_squared_loss,
            progress=self._progress(work, task),
        )

    def _progress(self, work: _Work, task: ClientTask) -> Floats:
        pulls = task.pull_factors * self.runtime.algorithm.pull
        steps = work.probed + work.outcomes.steps
        return self.runtime.training.progress(steps, task.rates, pulls, restart=work.restarts)

    def _start_losses(self, cohort: SliceData) -> Floats:
        self.runtime.model.load(self.memory.origin)
        samples = cohort.fetch(np.arange(cohort.sizes.sum()))
        return mean_losses(self.runtime.model.module, *samples, cohort.sizes)[:, None]

    def _one(self, signal: Signal, number: int, context: ClientContext, trainings: Trainings) -> Floats:
        """Measured on one client."""
        context.movement, context.outcome = trainings.movements[number], trainings.outcome(number)
        if signal.uses_model:
            self._load_trained(context.movement)
        return numbers(signal.measure(context))

    def _load_trained(self, movement: Vector) -> None:
        moved = torch.from_numpy(movement)
        self.runtime.model.load(model_of(moved, self.memory.origin, self._chain.layout.spec))


def _losses_for(report: tuple[Signal, ...]) -> Literal["none", "mean", "squared"]:
    """Which by-products of training a report may look at."""
    if not report:
        return "none"
    return "squared" if any(signal.needs_squared_loss for signal in report) else "mean"
