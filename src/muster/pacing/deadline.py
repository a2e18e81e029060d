"""A training ends at a deadline: fixed, or chosen from how long trainings have taken so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.pacing.base import Pacing, Wait, check_limit, pacings


@pacings.register("deadline")
@dataclass(frozen=True)
class Deadline(Pacing):
    """Move on after a number of seconds, or earlier when all clients have answered.

    With `quantile`, the deadline is that quantile of the durations of all clients' last trainings, as in Oort's
    pacer; until a duration is known, the server waits for all clients.
    """

    seconds: float | None = None
    quantile: float | None = None
    #: "discard": a late client is given up on; "use": its answer counts in the round in which it arrives.
    late: Literal["discard", "use"] = "discard"
    #: With late = "use": how many aggregations an answer may have missed; None: any number.
    max_staleness: int | None = None

    @property
    def late_count(self) -> bool:  # type: ignore[override]
        return self.late == "use"

    @property
    def looks_at_durations(self) -> bool:  # type: ignore[override]
        return self.quantile is not None

    def check(self, population: Population) -> None:
        if (self.seconds is None) == (self.quantile is None):
            raise ConfigError(
                "the pacing 'deadline' needs either pacing.seconds or pacing.quantile",
                fix="set one of them: seconds = 60.0, or quantile = 0.8",
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ConfigError(f"bad value for 'pacing.seconds': {self.seconds}", expected="a positive number")
        if self.quantile is not None and not 0 < self.quantile <= 1:
            raise ConfigError(f"bad value for 'pacing.quantile': {self.quantile}", expected="0 < quantile ≤ 1")
        check_limit(self.max_staleness)

    def wait(self, started: int, durations: Floats) -> Wait:
        if self.seconds is not None:
            return Wait(started, seconds=self.seconds)
        if not len(durations):
            return Wait(started)
        # Those that were given up on stay above every deadline: otherwise it would creep down round by round.
        return Wait(started, seconds=float(np.quantile(durations, self.quantile or 1.0, method="lower")))
