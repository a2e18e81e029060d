"""Scaled update: attackers amplify their update (model replacement; Bagdasaryan et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.attacks.base import UpdateAttack
from muster.updates.filters import filters


@filters.register("scaled-update")
@dataclass(frozen=True)
class ScaledUpdate(UpdateAttack):
    """Attack: send the trained update multiplied by a factor; with a data attack, model replacement."""

    factor: float = 10.0

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("factor", 0 < self.factor < np.inf, "a positive number")

    def attack(self, movement: Vector, spec: ParameterSpec, rng: np.random.Generator) -> None:
        movement[spec.trainable] *= np.float32(self.factor)
