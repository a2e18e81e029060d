"""Clients that work in real time: when they have answered is seen, not computed.

An engine whose clients train when their answers are collected has no use for this (`Engine.live` is None). One
whose clients are elsewhere, and take as long as they take, says here who has answered since the last look.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.engine.task import Place

if TYPE_CHECKING:
    from muster.engine.base import Failed, TrainOrder
    from muster.updates.table import Updates


@dataclass(frozen=True)
class Problem:
    """Why a client has no answer that could be used."""

    reason: str
    #: The client itself is gone, rather than its answer wrong.
    gone: bool = False


@dataclass(frozen=True)
class Arrival:
    """A client's training has come to an end."""

    place: Place
    client: int
    #: None: its answer is there.
    problem: Problem | None = None


class Live(ABC):
    """What the server sees of clients that work in real time. Orders go out with `Engine.start`, at once.

    Every client of an order arrives exactly once: with an answer, or with the reason why there is none, unless the
    server gives it up before. Answers that have arrived wait here until they are taken.
    """

    @abstractmethod
    def seconds(self) -> float:
        """A clock that only goes forward; where it starts does not matter."""

    @abstractmethod
    def arrivals(self) -> list[Arrival]:
        """Whose trainings have ended since the last look. Does not wait."""

    @abstractmethod
    def pause(self) -> None:
        """Let some time pass before the next look."""

    @abstractmethod
    def answers(self, orders: Sequence[TrainOrder]) -> Iterator[Updates | Failed]:
        """The answers of these orders' clients, who have all arrived, as `Engine.collect` hands them over.

        An order may name some of the clients that it was sent to; the others' answers stay where they are.
        """

    @abstractmethod
    def give_up(self, order: TrainOrder) -> None:
        """Nobody waits for these clients any more: should they answer, that is told as an event."""

    @abstractmethod
    def too_late(self) -> list[tuple[Place, int]]:
        """Who has answered which order after it was given up, since the last call."""
