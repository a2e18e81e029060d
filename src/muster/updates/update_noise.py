"""Noise on model updates: what leaves the client is differentially private, whatever the server does with it.

Local differential privacy: two clients with any data at all send updates that can hardly be told apart. That takes
much more noise than hiding one sample among many, or one client in a sum that cannot be taken apart.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.privacy.account import LARGEST_EPSILON
from muster.privacy.entropy import SystemNoise
from muster.privacy.noise import Mechanism, gaussian_scale
from muster.updates.filters import Draws, Filter, Filtered, Side, filters
from muster.updates.table import Updates


@filters.register("update-noise")
@dataclass(frozen=True)
class UpdateNoise(Filter):
    """Clips the update and adds Gaussian noise, on the client: every update is (ε, δ)-private."""

    #: Longer movements are shortened to this.
    norm: float
    #: Of each update.
    epsilon: float
    delta: float = 1e-5
    side: Side = field(default="client", init=False)
    _own_entropy: bool = field(default=False, init=False, repr=False)

    # As the account of the run's privacy names it.
    name: ClassVar[str] = "model update"
    mechanism: ClassVar[Mechanism] = "gaussian"
    neighbours: ClassVar[str] = "any two data sets"

    def check(self, population: Population) -> None:
        self.check_amounts()
        self.check_model(population.spec)

    def check_amounts(self) -> None:
        """Refuse options that protect nothing (NaN is among them)."""
        self._require("norm", 0 < self.norm < math.inf, "a positive number")
        self._require("epsilon", 0 < self.epsilon <= LARGEST_EPSILON, f"above 0, at most {LARGEST_EPSILON:g}")
        self._require("delta", 0 < self.delta < 1, "between 0 and 1")

    def check_model(self, spec: ParameterSpec) -> None:
        """Refuse models of which something would leave without noise."""
        if spec.size > spec.trainable.stop:
            first = (*spec.buffers, *spec.counters)[0].name
            raise ConfigError(
                f"update-noise: the model has running statistics ('{first}'), which would leave without noise",
                fix="use a model without batch normalisation, for example model.name = 'group-norm-cnn'",
            )

    def _require(self, option: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"UpdateNoise: {option} is {getattr(self, option)}", expected=expected)

    @property
    def scale(self) -> float:
        """Standard deviation of the noise on every number: two clipped movements are at most 2 · norm apart."""
        return 2 * self.norm * gaussian_scale(self.epsilon, self.delta)

    def on_node(self) -> UpdateNoise:
        """The same, and no number of it follows from the seed, which the server knows."""
        own = copy.copy(self)
        object.__setattr__(own, "_own_entropy", True)
        return own

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        for row, client in enumerate(updates.clients.tolist()):
            exact = clipped(updates.movements[row, spec.trainable], self.norm)
            updates.movements[row, spec.trainable] = exact + self._noise(len(exact), draws, client)
        # Every row, also a short one: whether an update was shortened is about the data, and nothing hides it.
        return Filtered(updates, changed=len(updates))

    def _noise(self, size: int, draws: Draws, client: int) -> Floats:
        rng = SystemNoise() if self._own_entropy else draws(client)
        return rng.normal(0.0, self.scale, size)


def clipped(movement: Vector, norm: float) -> Floats:
    """The movement, at most `norm` long; nothing at all where it is not finite, which would show through noise.

    >>> clipped(np.array([3.0, 4.0], dtype=np.float32), 1.0).round(6).tolist()
    [0.6, 0.8]
    """
    exact = movement.astype(np.float64)
    if not np.isfinite(exact).all():
        return np.zeros(len(exact))
    length = float(np.linalg.norm(exact))
    return np.asarray(exact if length <= norm else exact * (norm / length))
