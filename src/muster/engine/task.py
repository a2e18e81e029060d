"""What clients are told to do: the same in a worker's pipe, in this process and, one row of it, over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.randomness import Words
from muster.signals.base import Signal


@dataclass(frozen=True)
class Place:
    """Where in the run an exchange happens. Random draws on clients are derived from it."""

    round: int
    #: How many trainings came before in this round.
    iteration: int
    #: How many exchanges (asks and trainings) came before in this round.
    exchange: int
    #: How many rounds the run has, where that is known here.
    rounds: int = 0


#: For each client the lengths of the state vectors that lie in its slot, by name: an array of dicts.
Present: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"


def present_of(lengths: Sequence[dict[str, int]]) -> Present | None:
    """None where no client has any."""
    if not any(lengths):
        return None
    present = np.empty(len(lengths), dtype=object)
    present[:] = lengths
    return present


@dataclass(frozen=True)
class ClientTask:
    """One or several clients' part in an exchange, one row per client; the parameters travel separately."""

    verb: Literal["ask", "train"]
    clients: Ints
    place: Place
    #: What to measure: on request, or after the training.
    signals: tuple[Signal, ...]
    #: Of each client: the learning rate, and the factor of the local algorithm's proximal strength.
    rates: Floats
    pull_factors: Floats
    #: Where each client's vectors lie in shared memory, if that is where they are.
    slots: Ints | None = None
    #: What each client keeps between exchanges, as it lies there. None: no client keeps anything.
    present: Present | None = None
    with_broadcast: bool = False
    #: Of the generators that make the order of each client's mini-batches, where they were made for all together.
    seeds: Words | None = None

    @classmethod
    def of(
        cls,
        verb: Literal["ask", "train"],
        client: int,
        place: Place,
        *,
        lr: float,
        signals: tuple[Signal, ...] = (),
        pull_factor: float = 1.0,
    ) -> ClientTask:
        """The task of one client."""
        return cls(verb, np.array([client]), place, signals, np.array([lr]), np.array([pull_factor]))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def client(self) -> int:
        """Of a task with one row."""
        return int(self.clients[0])

    @property
    def lr(self) -> float:
        return float(self.rates[0])

    @property
    def pull_factor(self) -> float:
        return float(self.pull_factors[0])

    def row(self, number: int) -> ClientTask:
        """The task of one of the clients."""
        return self.rows(slice(number, number + 1))

    def rows(self, which: Ints | slice) -> ClientTask:
        """The task of some of the clients, in this order."""
        return ClientTask(
            self.verb,
            self.clients[which],
            self.place,
            self.signals,
            self.rates[which],
            self.pull_factors[which],
            slots=None if self.slots is None else self.slots[which],
            present=None if self.present is None else self.present[which],
            with_broadcast=self.with_broadcast,
            seeds=None if self.seeds is None else self.seeds[which],
        )


@dataclass(frozen=True)
class Predict:
    """A part of an evaluation: samples to run through the global model."""

    positions: Ints
    split: Literal["test", "train"] = "test"
