"""The door: what clients report must be something that an honest client can report, or it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.server.flights import positions
from muster.signals.base import LARGEST_COUNT, Replies, Signal
from muster.signals.progress import LocalProgress
from muster.training.base import LocalTraining
from muster.updates.filters import Draws, Filter, Filtered, without
from muster.updates.table import Updates

#: How far two computations of the same number may be apart, relative to it.
_ROUNDING = 1e-6
#: Refusals of one exchange that are listed one by one.
MANY = 8


def objections(signal: Signal, rows: Floats, population: Population) -> dict[int, str]:
    """Why rows of a signal cannot be believed, by row."""
    if not len(rows):
        return {}
    wide, width = rows.reshape(len(rows), -1), signal.width(population)
    if wide.shape[1] != width:
        why = f"its '{signal.name}' has {wide.shape[1]} numbers, expected {width}"
        return dict.fromkeys(range(len(rows)), why)
    problems = signal.allowed(population).objections(wide)
    return {row: f"its '{signal.name}' {problem}" for row, problem in problems.items()}


def admitted(
    replies: Replies, signals: Sequence[Signal], population: Population
) -> tuple[Replies, dict[int, str]]:
    """The replies that can be believed, and client → why the others cannot."""
    found: dict[int, str] = {}
    for signal in signals:
        found = objections(signal, replies[signal.name], population) | found
    if not found:
        return replies, {}
    keep = np.ones(len(replies), dtype=np.bool_)
    keep[list(found)] = False
    refused = {int(replies.clients[row]): why for row, why in sorted(found.items())}
    return Replies(replies.clients[keep], {name: rows[keep] for name, rows in replies.values.items()}), refused


def told(refused: dict[int, str]) -> list[str]:
    """Refusals in words for a round's record; where there are many, how many and an example."""
    lines = [f"client {client} was not believed: {why}" for client, why in refused.items()]
    return lines if len(lines) <= MANY else [f"{len(lines)} clients were not believed, for example {lines[0]}"]


@dataclass(frozen=True)
class BelievableReports(Filter):
    """Refuses updates whose reports no honest client can make."""

    signals: tuple[Signal, ...]
    population: Population

    changes: ClassVar[bool] = False

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        found: dict[int, str] = {}
        for signal in self.signals:
            found = objections(signal, updates.reports[signal.name], self.population) | found
        return without(updates, found)


@dataclass(frozen=True)
class BelievableWork(Filter):
    """Refuses updates whose reported local work is not what their steps add up to: FedNova divides by it.

    The server knows how clients train, so it computes the number, too.
    """

    training: LocalTraining
    #: Aligned: who was told to train, and how strongly each is pulled back to the model that it started from.
    clients: Ints
    pulls: Floats

    changes: ClassVar[bool] = False

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        stated = updates.report(LocalProgress.name)
        pull = self.pulls[positions(self.clients, updates.clients)]
        # After a probe the optimiser begins anew or does not, as the probe says.
        begins = np.stack([np.zeros_like(updates.steps), updates.numbers["credited_steps"]])
        honest = self.training.progress(updates.steps, updates.lr, pull, begins)
        agrees = np.isclose(stated, honest, rtol=_ROUNDING, atol=0.0).any(axis=0)
        return without(
            updates,
            {
                row: f"its '{LocalProgress.name}' is {stated[row]:g}, but its steps amount to {honest[0, row]:g}"
                for row in np.flatnonzero(~agrees).tolist()
            },
        )


@dataclass(frozen=True)
class PossibleStatistics(Filter):
    """Refuses updates with running statistics or counters that no training leaves behind.

    Movements do not show it: a variance is negative or not depending on the model that the client started from.
    """

    #: Version → the model that clients with it started from.
    origins: Mapping[int, Vector]

    changes: ClassVar[bool] = False

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        found: dict[int, str] = {}
        for version, origin in self.origins.items():
            rows = np.flatnonzero(updates.version == version)
            beside = slice(spec.trainable.stop, spec.size)
            for row, problem in self._problems(origin, updates.movements[rows, beside], spec).items():
                found[int(rows[row])] = problem
        return without(updates, found)

    @staticmethod
    def _problems(origin: Vector, sent: Vector, spec: ParameterSpec) -> dict[int, str]:
        """Why rows of what is not trained cannot be, by row."""
        first = spec.trainable.stop
        counters = sent[:, spec.averaged.stop - first :]
        # No true variance becomes negative here: where variance − origin is rounded, it is not below −origin.
        with np.errstate(over="ignore"):
            statistics = sent[:, : spec.averaged.stop - first] + origin[first : spec.averaged.stop]
        counts, variances = spec.batch_counts, statistics[:, spec.variances - first]
        wrong: dict[str, Bools] = {
            "its running statistics are not finite": ~np.isfinite(statistics),
            "a running variance is negative": variances < 0,
            "a counter is not a whole number": counters != np.rint(counters),
            "a counter is too large": np.abs(counters) > LARGEST_COUNT,
            "it counts fewer mini-batches than before it trained": sent[:, counts - first] < origin[counts],
        }
        found: dict[int, str] = {}
        for problem, entries in wrong.items():
            for row in np.flatnonzero(entries.any(axis=1)).tolist():
                found.setdefault(row, problem)
        return found
