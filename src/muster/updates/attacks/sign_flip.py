"""Sign flip: attackers push the model the other way (Li et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.attacks.base import UpdateAttack
from muster.updates.filters import filters


@filters.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(UpdateAttack):
    """Attack: send the opposite of the trained update."""

    #: How many times the length of the trained update.
    scale: float = 1.0

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("scale", 0 < self.scale < np.inf, "a positive number")

    def attack(self, movement: Vector, spec: ParameterSpec, rng: np.random.Generator) -> None:
        movement[spec.trainable] *= np.float32(-self.scale)
