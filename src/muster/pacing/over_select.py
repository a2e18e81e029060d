"""Ask more clients than are needed and take the first that answer (Bonawitz et al., MLSys 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.pacing.base import Pacing, Wait, pacings

#: 1.3 × 10 is a little more than 13 in binary, and 13 / 1.3 a little less than 10.
_ROUNDING = 1e-9


@pacings.register("over-select")
@dataclass(frozen=True)
class OverSelect(Pacing):
    """Ask for `factor` times as many clients as `clients_per_round` says; the first of them to answer are used."""

    factor: float = 1.3

    def check(self, population: Population) -> None:
        if not 1 <= self.factor < math.inf:
            raise ConfigError(f"bad value for 'pacing.factor': {self.factor}", expected="at least 1")

    def cautions(self, population: Population) -> list[str]:
        if self.factor > 1:
            return []
        return ["over-select is synchronous here: no more clients are asked than are used; set a factor above 1"]

    def asked(self, wanted: int) -> int:
        return math.ceil(self.factor * wanted - _ROUNDING)

    def wait(self, started: int, durations: Floats) -> Wait:
        # Undoes `asked` for any number; a cohort that came out smaller is not cut to nothing.
        return Wait(answers=max(1, math.floor(started / self.factor + _ROUNDING)))
