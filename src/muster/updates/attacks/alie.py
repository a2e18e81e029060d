"""A little is enough: attackers hide among honest updates (ALIE; Baruch et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.updates.attacks.base import Collusion
from muster.updates.filters import filters


def hidden_deviations(clients: int, attackers: int) -> float:
    """z_max: the number of standard deviations at which enough honest clients are still further out.

    With n clients of which m attack, s = ⌊n/2 + 1⌋ − m honest ones have to look more extreme than the attackers
    for the attackers to count as part of the majority: z = Φ⁻¹((n − m − s)/(n − m)), at least 0.

    >>> round(hidden_deviations(50, 24), 2)
    1.43
    """
    honest = clients - attackers
    needed = clients // 2 + 1 - attackers
    share = (honest - needed) / honest
    return float(max(0.0, ndtri(min(share, 1 - 1e-9)))) if share > 0 else 0.0


@filters.register("alie")
@dataclass(frozen=True)
class Alie(Collusion):
    """Attack: all attackers send the honest mean, shifted by as many deviations as go unnoticed."""

    #: Standard deviations from the mean; None: as many as the numbers of clients and attackers allow.
    deviations: float | None = None

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("deviations", self.deviations is None or abs(self.deviations) < np.inf, "a finite number")

    def crafted(self, honest: Floats, attackers: int, rng: np.random.Generator) -> Floats:
        z = hidden_deviations(len(honest) + attackers, attackers) if self.deviations is None else self.deviations
        spread = honest.std(axis=0, ddof=1) if len(honest) > 1 else np.zeros(honest.shape[1])
        return np.asarray(honest.mean(axis=0) - z * spread)
