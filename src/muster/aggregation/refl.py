"""REFL, the server's part: stale answers count by their age and by what they add (Abdelmoniem et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._blocks import cached_width, column_blocks
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators
from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def deviations(rows: Vector, fresh: Bools, shares: Floats) -> Floats:
    """‖u_i − ū‖² from the fresh rows' mean ū, as a share of the largest among the stale rows; 0 for fresh ones.

    This is the paper's Λ_i/Λ_max: with û_i = (u_i + n ū)/(n + 1) for n fresh rows, û_i − ū = (u_i − ū)/(n + 1), so
    that n and ‖ū‖ cancel. Where no fresh row counts, there is nothing to deviate from, and all are 0. Rows
    without a share are not compared.
    """
    squares = np.zeros(len(rows))
    counted = np.where(fresh, shares, 0.0)
    if not counted.any():
        return squares
    counted = counted / counted.sum()
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        part = rows[:, block].astype(np.float64)
        part -= counted @ part
        squares += np.square(part).sum(axis=1)
    squares[fresh | (shares == 0)] = 0.0
    largest = squares.max(initial=0.0)
    return squares / largest if largest > 0 else squares


def stale_factors(staleness: Ints, deviation: Floats, beta: float = 0.35, boost_divisor: float = 1.0) -> Floats:
    """1 for fresh answers; (1 − β)/(τ + 1) + β (1 − e^−Λ/Λ_max) for stale ones.

    >>> stale_factors(np.array([0, 1, 3]), np.array([0.0, 1.0, 0.5]), beta=0.35).round(4).tolist()
    [1.0, 0.5462, 0.3002]
    """
    aged = (1 - beta) / (staleness + 1.0) + beta * (1 - np.exp(-deviation) / boost_divisor)
    return np.where(staleness > 0, aged, 1.0)


@aggregators.register("refl")
@dataclass
class REFL(Aggregator):
    """Mean of the movements; a stale one counts less the older it is, and more if it differs from fresh ones."""

    weights: Literal["samples", "equal"] = "equal"
    #: How much the difference counts, against the age (β).
    beta: float = 0.35
    #: Divides the exponential of the difference. 1 is the paper, 10 the authors' code: there even an answer that
    #: adds nothing gets nine tenths of the difference's share.
    boost_divisor: float = 1.0

    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("beta", 0 <= self.beta <= 1, "0 to 1")
        self.require("boost_divisor", 1 <= self.boost_divisor < np.inf, "at least 1")

    def cautions(self, population: Population) -> list[str]:
        if population.late_answers is False:
            equal = "" if self.weights == "samples" else " with equal weights"
            return [f"refl is fedavg{equal} here: no answer is ever late in this run"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        fresh = updates.staleness == 0
        if fresh.all():
            return self.averaged(current, updates, updates.shares(self.weights), spec)
        shares = updates.shares(self.weights)
        apart = deviations(updates.movements[:, spec.trainable], fresh, shares)
        factors = stale_factors(updates.staleness, apart, self.beta, self.boost_divisor)
        return self.averaged(current, updates, updates.shares(self.weights, factors), spec)
