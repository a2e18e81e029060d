"""Lying signals: clients report numbers that they have not measured, to be selected or to break the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.signals.base import Signal
from muster.updates.attacks.base import Attack
from muster.updates.filters import Draws, Filtered, filters
from muster.updates.table import Updates

Lie = Literal["factor", "huge", "infinite", "minus-infinite", "nan", "negative", "zero"]

#: What is reported instead of every number.
_CONSTANTS: dict[str, float] = {
    "huge": 1e300,
    "infinite": np.inf,
    "minus-infinite": -np.inf,
    "nan": np.nan,
    "zero": 0.0,
}


@filters.register("lying-signals")
@dataclass(frozen=True)
class LyingSignals(Attack):
    """Attack: report numbers other than those measured, to be selected more often or to break the server."""

    #: "factor" times the truth (believable), or one of the others (the server refuses most of them).
    lie: Lie = "factor"
    factor: float = 10.0
    #: Names of the signals that are lied about; empty: all.
    signals: tuple[str, ...] = ()

    changes: ClassVar[bool] = False
    lies: ClassVar[bool] = True

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("factor", abs(self.factor) < np.inf, "a finite number")

    def told(self, client: int, signal: Signal, values: Floats, rng: np.random.Generator) -> Floats:
        if client not in self.clients or (self.signals and signal.name not in self.signals):
            return values
        if self.lie == "factor":
            return self.factor * values
        if self.lie == "negative":
            return -np.abs(values) - 1
        return np.full_like(values, _CONSTANTS[self.lie])

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return Filtered(updates)
