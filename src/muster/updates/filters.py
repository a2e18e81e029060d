"""Filters: what happens to updates between a client's optimiser and the aggregator, in a stated order.

A filter gets a table of updates and returns the rows that pass; it may change them, and it may refuse some
with a reason. On the client's side it acts before the answer is sent (clipping, noise, compression, a simulated
attack), on the server's side after it has arrived (the guard, clipping). The round's record says
what each did, the ledger what it cost and disclosed. See docs/filters.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Component
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.core.randomness import generator
from muster.core.registry import Registry
from muster.signals.base import Signal
from muster.updates.table import Updates

if TYPE_CHECKING:
    from muster.data.federated import FederatedData

Side: TypeAlias = Literal["client", "server"]
#: Gives a client its own generator for one filter in one training.
Draws: TypeAlias = Callable[[int], np.random.Generator]


@dataclass(frozen=True)
class Filtered:
    """The result of a filter on a table."""

    #: The rows that pass.
    updates: Updates
    #: Client → why its update was refused.
    refused: Mapping[int, str] = field(default_factory=dict)
    #: How many rows were changed.
    changed: int = 0


class Filter(Component):
    """One step between a client's optimiser and the aggregator. Movements may be changed in place.

    >>> class Halve(Filter):
    ...     def apply(self, updates, spec, draws):
    ...         updates.movements[:, spec.trainable] /= 2
    ...         return Filtered(updates, changed=len(updates))
    >>> import muster
    >>> result = muster.run(muster.Experiment(rounds=1, filters=[Halve()]), workers=0)
    >>> result.records[0].trainings[0].filtered
    {'Halve': {'seen': 8, 'changed': 8, 'refused': 0}}
    """

    #: Where it acts. On the client's side it sees one client's update, and may not refuse it.
    side: Side = "server"
    #: Whether it may change movements. One that only refuses is allowed where nothing may change on the way.
    changes: ClassVar[bool] = True
    #: What a client discloses, with this filter on its side, beyond the update itself, in words; "" for nothing.
    discloses: ClassVar[str] = ""
    #: The first round in which it acts, counted from 1.
    from_round: int = 1
    #: Gets the answers of a whole training at once, before any other filter of the server sees one of them.
    whole: ClassVar[bool] = False
    #: Changes what clients report: `told`.
    lies: ClassVar[bool] = False
    #: Changes what clients train on: `poisoned`.
    poisons: ClassVar[bool] = False

    def sent_bytes(self, before: int, spec: ParameterSpec) -> int:
        """How many bytes a movement takes when it is sent, if it took `before` bytes without this filter."""
        return before

    def settled(self, clients: int, seed: int) -> Filter:
        """The filter for a federation of this many clients, where what it does depends on that."""
        return self

    def on_node(self) -> Filter:
        """The filter as a node of a federation applies it, where the server must not know what it draws."""
        return self

    def told(self, client: int, signal: Signal, values: Floats, rng: np.random.Generator) -> Floats:
        """What a client answers in place of what it measured, where the filter `lies`."""
        return values

    def poisoned(self, data: FederatedData) -> FederatedData:
        """What clients train on in place of their data, where the filter `poisons`."""
        return data

    @abstractmethod
    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        """Change or refuse rows."""


filters: Registry[Filter] = Registry("update filter", "muster.updates", "muster.filters")


@dataclass
class Tally:
    """What the filters of one training did, by name: what `TrainingRecord.filtered` is made from."""

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

    def book(self, name: str, seen: int, *, changed: int, refused: int = 0) -> None:
        for counts, number in ((self.seen, seen), (self.changed, changed), (self.refused, refused)):
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
        if result.changed and not step.changes:
            raise ConfigError(
                f"the filter '{name}' changed updates, but declares that it does not",
                fix=f"leave out `changes = False` in {type(step).__name__}",
            )
        tally.book(name, len(updates), changed=result.changed, refused=len(result.refused))
        refused |= result.refused
        changed += result.changed
        updates = result.updates
    return Filtered(updates, refused, changed)


def working(chain: Sequence[tuple[str, Filter]], round: int) -> tuple[tuple[str, Filter], ...]:
    """The filters of a chain that act in a round (counted from 0)."""
    return tuple((name, step) for name, step in chain if round + 1 >= step.from_round)


def as_sent(
    chain: Sequence[tuple[str, Filter]],
    answer: Updates,
    spec: ParameterSpec,
    draws: Callable[[str], Draws],
    round: int = 0,
) -> Updates:
    """A client's answer (one row) after the filters of its own side, with what each of them did."""
    tally = Tally()
    result = passed_through(working(chain, round), answer, spec, draws, tally)
    if result.refused or len(result.updates) != len(answer):
        culprit = next((name for name, count in tally.refused.items() if count), chain[-1][0])
        raise ConfigError(
            f"the filter '{culprit}' refused an update on the client's side: {_reason(result.refused)}",
            expected="filters that only change it; a client that does not want to answer need not train",
            fix='use side = "server"',
        )
    return replace(result.updates, changed={name: np.array([tally.changed.get(name, 0)]) for name, _ in chain})


def _reason(refused: Mapping[int, str]) -> str:
    return next(iter(refused.values()), "its row is gone")


def streams(seed: int, round: int, iteration: int) -> Callable[[str], Draws]:
    """What each filter of a training draws from, by the name under which it is recorded."""
    return lambda name: lambda client: generator(seed, f"filter-{name}", round, iteration, client)


def without(updates: Updates, objections: Mapping[int, str]) -> Filtered:
    """The table without the rows that are objected to (by row)."""
    if not objections:
        return Filtered(updates)
    passed = np.ones(len(updates), dtype=np.bool_)
    passed[list(objections)] = False
    reasons = {int(updates.clients[row]): why for row, why in sorted(objections.items())}
    return Filtered(updates.rows(passed), reasons)


def named(chain: Sequence[Filter]) -> Iterator[tuple[str, Filter]]:
    """The filters of one side with the names under which they are recorded; a second one of a kind gets a number.

    Those of the clients are named differently: they must not draw from the stream of one on the server.
    """
    counts: dict[str, int] = {}
    for step in chain:
        name = ("client " if step.side == "client" else "") + filters.name_of(step)
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name} {counts[name]}"), step
