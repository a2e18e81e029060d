"""Gaussian noise: attackers send random numbers (Blanchard et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.attacks.base import UpdateAttack
from muster.updates.filters import filters


@filters.register("gaussian-noise")
@dataclass(frozen=True)
class GaussianNoise(UpdateAttack):
    """Attack: send normal random numbers in place of the trained update, or added to it."""

    #: Standard deviation of every number.
    scale: float = 0.1
    mode: Literal["replace", "add"] = "replace"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("scale", 0 < self.scale < np.inf, "a positive number")

    def attack(self, movement: Vector, spec: ParameterSpec, rng: np.random.Generator) -> None:
        noise = rng.normal(0.0, self.scale, spec.trainable.stop).astype(np.float32)
        movement[spec.trainable] = noise if self.mode == "replace" else movement[spec.trainable] + noise
