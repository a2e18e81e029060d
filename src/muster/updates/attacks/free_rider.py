"""Free rider: a client that wants the model without the work (Fraboni et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.attacks.base import UpdateAttack
from muster.updates.filters import filters


@filters.register("free-rider")
@dataclass(frozen=True)
class FreeRider(UpdateAttack):
    """Attack: send the global model back, disguised with a little noise, without any training."""

    #: Standard deviation of the disguise; 0: none.
    noise: float = 0.0

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("noise", 0 <= self.noise < np.inf, "zero or a positive number")

    def attack(self, movement: Vector, spec: ParameterSpec, rng: np.random.Generator) -> None:
        # Running statistics are the server's too; counters are not a difference and stay.
        movement[spec.averaged] = 0.0
        if self.noise:
            movement[spec.trainable] = rng.normal(0.0, self.noise, spec.trainable.stop)
