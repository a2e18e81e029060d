"""Every training waits for all of its clients."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.arrays import Floats
from muster.pacing.base import Pacing, Wait, pacings


@pacings.register("synchronous")
@dataclass(frozen=True)
class Synchronous(Pacing):
    """Wait until every client has answered or left: the slowest decides how long a round takes."""

    def wait(self, started: int, durations: Floats) -> Wait:
        return Wait(answers=started)
