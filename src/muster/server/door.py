"""The door: what clients report must be something that an honest client can report, or it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.signals.base import Replies, Signal
from muster.updates.filters import Draws, Filter, Filtered, without
from muster.updates.table import Updates

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
