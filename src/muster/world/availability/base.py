"""Who can be reached in a round: a pure function of seed and round, so a resumed run sees the same clients."""

from __future__ import annotations

from abc import abstractmethod

from muster.core.arrays import Ints
from muster.core.component import Component
from muster.core.registry import Registry


class Availability(Component):
    """Decides which clients can be reached in a round. Implementations are frozen dataclasses without state."""

    @abstractmethod
    def available(self, round: int, clients: int, seed: int) -> Ints:
        """The ids of the clients that can be reached in round `round` (0-based), ascending; may be empty."""


availabilities: Registry[Availability] = Registry("availability", "muster.world.availability")
