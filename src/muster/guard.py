"""The guard: looks at every update before it may touch the global model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muster.arrays import Vector
from muster.errors import ConfigError
from muster.parameters import ParameterSpec


@dataclass(frozen=True)
class Guard:
    """Refuses updates with a wrong shape, non-finite values, or a norm beyond a bound."""

    #: Longest movement that is let through; None: any length.
    max_norm: float | None = None
    #: After so many rounds in a row without a single valid update the run stops.
    max_failed_rounds: int = 10

    def check(self) -> None:
        if self.max_norm is not None and not self.max_norm > 0:
            raise ConfigError(f"bad value for 'guard.max_norm': {self.max_norm}", expected="a positive number")
        if self.max_failed_rounds < 1:
            raise ConfigError(
                f"bad value for 'guard.max_failed_rounds': {self.max_failed_rounds}", expected="at least 1"
            )

    def objection(self, movement: Vector, spec: ParameterSpec) -> str | None:
        """Why this movement must not be used; None when it may."""
        if movement.shape != (spec.size,):
            return f"wrong shape {movement.shape}, expected ({spec.size},)"
        if movement.dtype != np.float32:
            return f"wrong type {movement.dtype}, expected float32"
        if not math.isfinite(length(movement)):
            return "non-finite values"
        if self.max_norm is None:
            return None
        # Counters travel as they are and grow with every round: they are no part of the movement's length.
        norm = length(movement[spec.averaged])
        if norm > self.max_norm:
            return f"norm {norm:.4g} is beyond the bound {self.max_norm:g}"
        return None


def length(movement: Vector) -> float:
    """Euclidean norm; NaN or infinite exactly when an entry is."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(movement, movement))
        if math.isfinite(square):
            return math.sqrt(square)
        # Either an entry is not finite, or float32 was too small for the sum of squares.
        return float(np.linalg.norm(movement.astype(np.float64)))


def clip(movement: Vector, limit: float, spec: ParameterSpec) -> None:
    """Shorten the trainable part of a movement to `limit`, in place."""
    norm = length(movement[spec.trainable])
    if norm > limit:
        movement[spec.trainable] *= np.float32(limit / norm)
