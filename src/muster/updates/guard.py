"""The guard: checks every update before it may change the global model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.signals.base import LARGEST
from muster.updates.filters import Draws, Filter, Filtered, without
from muster.updates.table import Updates

#: A sum of squares above this has lost nothing that matters to numbers too small for float32.
_SAFE_SQUARE = 1e-30


@dataclass(frozen=True)
class Guard(Filter):
    """Refuses updates with a wrong shape, impossible numbers, or a norm beyond a bound."""

    #: Longest movement of the trainable parameters that is accepted; None: any length.
    max_norm: float | None = None
    #: After this many rounds in a row without a single valid update the run stops.
    max_failed_rounds: int = 10

    changes: ClassVar[bool] = False

    def check(self, population: Population | None = None) -> None:
        if self.max_norm is not None and not self.max_norm > 0:
            raise ConfigError(f"bad value for 'guard.max_norm': {self.max_norm}", expected="a positive number")
        if self.max_failed_rounds < 1:
            raise ConfigError(
                f"bad value for 'guard.max_failed_rounds': {self.max_failed_rounds}", expected="at least 1"
            )

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        found = self.objections(updates.movements, spec)
        for name, rows in updates.extra.items():
            # What is made of them goes to all clients, for the rest of the run.
            within = (rows.max(axis=1) <= LARGEST) & (rows.min(axis=1) >= -LARGEST)
            for row in np.flatnonzero(~within).tolist():
                found.setdefault(row, f"its '{name}' has numbers that are not within ±{LARGEST:g}")
        return without(updates, found)

    def objections(self, movements: Vector, spec: ParameterSpec) -> dict[int, str]:
        """Why rows must not be used, by row; rows that may be used are not in it."""
        if movements.shape[1:] != (spec.size,):
            return dict.fromkeys(
                range(len(movements)), f"wrong shape {movements.shape[1:]}, expected ({spec.size},)"
            )
        if movements.dtype != np.float32:
            return dict.fromkeys(range(len(movements)), f"wrong type {movements.dtype}, expected float32")
        whole = lengths(movements)
        if self.max_norm is None and (whole <= LARGEST).all():
            return {}
        # Running statistics move on a scale of their own and would drown the weights; counters only grow.
        norms, bound = lengths(movements[:, spec.trainable]), math.inf if self.max_norm is None else self.max_norm
        found = dict.fromkeys(np.flatnonzero(~np.isfinite(whole)).tolist(), "non-finite values")
        for row in np.flatnonzero(norms > bound).tolist():
            found.setdefault(row, f"norm {norms[row]:.4g} is beyond the bound {bound:g}")
        # Finite numbers can add up to infinity: with a server's momentum one update would end the run.
        for row in np.flatnonzero(whole > LARGEST).tolist():
            found.setdefault(row, f"norm {whole[row]:.4g}: no training goes beyond {LARGEST:g}")
        return found


def length(movement: Vector) -> float:
    """Euclidean norm; NaN or infinite exactly when an entry is."""
    return float(lengths(movement[None])[0])


def lengths(movements: Vector) -> Floats:
    """Euclidean norms of the rows; NaN or infinite exactly when an entry of the row is."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.vecdot(movements, movements).astype(np.float64)
        norms = np.sqrt(squares)
        # Elsewhere an entry is not finite, or float32 was too coarse for the squares.
        safe = (squares > _SAFE_SQUARE) & (squares < math.inf)
        for row in [] if safe.all() else np.flatnonzero(~safe).tolist():
            norms[row] = np.linalg.norm(movements[row].astype(np.float64))
    return np.asarray(norms)
