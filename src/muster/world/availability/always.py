"""All clients can be reached in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Ints
from muster.world.availability.base import Availability, availabilities


@availabilities.register("always")
@dataclass(frozen=True)
class Always(Availability):
    """Every client can be reached in every round."""

    def available(self, moment: float, clients: int, seed: int) -> Ints:
        return np.arange(clients)
