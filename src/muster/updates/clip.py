"""Clipping: no movement is longer than a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.updates.filters import Draws, Filter, Filtered, Side, filters
from muster.updates.guard import lengths
from muster.updates.table import Updates


@filters.register("clip")
@dataclass(frozen=True)
class Clip(Filter):
    """Shortens the trainable part of movements that are longer than `norm`; running statistics are left alone."""

    norm: float
    side: Side = "server"

    discloses: ClassVar[str] = "whether the client's movement was longer than a bound (one bit)"

    def check(self, population: Population) -> None:
        if not self.norm > 0:
            raise ConfigError(f"Clip: norm is {self.norm}", expected="a positive number")

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        changed = 0
        for row, length in enumerate(lengths(updates.movements[:, spec.trainable]).tolist()):
            if length > self.norm:
                updates.movements[row, spec.trainable] *= np.float32(self.norm / length)
                changed += 1
        return Filtered(updates, changed=changed)
