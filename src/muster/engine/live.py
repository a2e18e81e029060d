"""Clients that work in real time: when they answer is observed, not computed.

An engine whose clients train when their answers are collected has no use for this (`Engine.live` is None). One
whose clients are elsewhere, and take as long as they take, says here which have answered since the last look.
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
class LostAnswer:
    """Why a client has no usable answer."""

    reason: str
    #: Whether the client itself is gone, rather than its answer wrong.
    gone: bool = False


@dataclass(frozen=True)
class Arrival:
    """A client's training has come to an end."""

    place: Place
    client: int
    #: None: its answer has arrived.
    problem: LostAnswer | None = None


class Live(ABC):
    """What the server sees of clients that work in real time. Orders go out immediately, with `Engine.start`.

    Every client of an order arrives exactly once: with an answer, or with the reason why there is none, unless the
    server gives up on it before. Answers that have arrived wait here until they are taken.
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
        """The answers of these orders' clients, which have all arrived, as `Engine.collect` hands them over.

        An order may name some of the clients that it was sent to; the others' answers stay where they are.
        """

    @abstractmethod
    def give_up(self, order: TrainOrder) -> None:
        """The server no longer waits for these clients: if they answer, that becomes an event."""

    @abstractmethod
    def too_late(self) -> list[tuple[Place, int]]:
        """Which clients have answered which order after it was given up on, since the last call."""
