"""Filters: what happens to updates between a client's optimiser and the aggregator, in a stated order.

A filter gets a table of updates and gives back the rows that go on; it may change them, and it may refuse some
with a reason. On the client's side it works before the answer is sent (clipping, noise, compression, an attack
that is to be simulated), on the server's side after it has arrived (the guard, clipping). The round's record says
what each did.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from muster.core.component import Component
from muster.core.parameters import ParameterSpec
from muster.core.registry import Registry
from muster.updates.table import Updates

Side: TypeAlias = Literal["client", "server"]
#: Gives a client its own generator for one filter in one training.
Draws: TypeAlias = Callable[[int], np.random.Generator]


@dataclass(frozen=True)
class Filtered:
    """What a filter made of a table."""

    #: The rows that go on.
    updates: Updates
    #: Client → why its update does not.
    refused: Mapping[int, str] = field(default_factory=dict)
    #: How many rows were changed.
    changed: int = 0


class Filter(Component):
    """One step between a client's optimiser and the aggregator. Movements may be changed in place.

    >>> class Halve(Filter):
    ...     def apply(self, updates, spec, draws):
    ...         updates.movements[:, spec.trainable] /= 2
    ...         return Filtered(updates, changed=len(updates))
    """

    side: Side = "server"
    #: What an update with this filter discloses less or more than without it, in words; "" for nothing.
    discloses: ClassVar[str] = ""

    @abstractmethod
    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        """Change or refuse rows."""


filters: Registry[Filter] = Registry("update filter", "muster.updates")


@dataclass
class Tally:
    """What the filters of one training did, by name: the book-keeping behind `TrainingRecord.filtered`."""

    seen: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, int]]:
        """For each filter that did something: how many updates it saw, changed and refused."""
        return {
            name: {"seen": self.seen[name], "changed": self.changed[name], "refused": self.refused[name]}
            for name in self.seen
            if self.changed[name] or self.refused[name]
        }

    def book(self, name: str, seen: int, result: Filtered) -> None:
        for counts, number in (
            (self.seen, seen),
            (self.changed, result.changed),
            (self.refused, len(result.refused)),
        ):
            counts[name] = counts.get(name, 0) + number


def passed_through(
    chain: Sequence[tuple[str, Filter]],
    updates: Updates,
    spec: ParameterSpec,
    draws: Callable[[str], Draws],
    tally: Tally,
) -> Filtered:
    """A table after all filters of a chain, in their order; a row that one refuses is not shown to the next."""
    refused: dict[int, str] = {}
    changed = 0
    for name, step in chain:
        if not len(updates):
            break
        result = step.apply(updates, spec, draws(name))
        tally.book(name, len(updates), result)
        refused |= result.refused
        changed += result.changed
        updates = result.updates
    return Filtered(updates, refused, changed)


def without(updates: Updates, objections: Mapping[int, str]) -> Filtered:
    """The table without the rows that are objected to (by row)."""
    if not objections:
        return Filtered(updates)
    passed = np.ones(len(updates), dtype=np.bool_)
    passed[list(objections)] = False
    reasons = {int(updates.clients[row]): why for row, why in sorted(objections.items())}
    return Filtered(updates.rows(passed), reasons)


def named(chain: Sequence[Filter]) -> Iterator[tuple[str, Filter]]:
    """The filters with the names under which they are booked; a second one of a kind gets a number."""
    counts: dict[str, int] = {}
    for step in chain:
        name = filters.name_of(step)
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name} {counts[name]}"), step
