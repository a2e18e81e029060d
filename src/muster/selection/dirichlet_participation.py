"""Participation skewed by a Dirichlet distribution: a model of unequal availability, not a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


def log_gammas(gamma: float, count: int, rng: np.random.Generator) -> Floats:
    """Logarithms of independent Gamma(γ, 1) variables, whose normalised values are Dirichlet(γ, …, γ).

    G(γ) has the law of G(γ + 1) · U^(1/γ); in logarithms that does not underflow for small γ. Variables of clients
    that join later can be appended: the normalised values are then Dirichlet again.
    """
    if math.isinf(gamma):
        return np.zeros(count)
    return np.log(rng.standard_gamma(gamma + 1, count)) - rng.standard_exponential(count) / gamma


@selectors.register("dirichlet-participation")
@dataclass
class DirichletParticipation(Selector):
    """Random clients with unequal probabilities, drawn from a Dirichlet distribution."""

    clients_per_round: int
    #: Concentration γ: small values let few clients dominate, `inf` is uniform.
    gamma: float = 1.0
    #: Draw the probabilities once, or afresh in every round (then all clients participate equally in the long
    #: run).
    redraw: Literal["never", "every_round"] = "never"

    log_weights: Floats = state(lambda: np.zeros(0))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if not self.gamma > 0:
            raise ConfigError(f"dirichlet-participation: gamma is {self.gamma}", expected="positive, or inf")

    def cautions(self, population: Population) -> list[str]:
        if math.isinf(self.gamma):
            return ["dirichlet-participation is random selection here: with gamma = inf all are equally likely"]
        if self.redraw == "every_round":
            return [
                "dirichlet-participation is random selection here: with redraw = 'every_round' no client is "
                "likelier than another for longer than a round"
            ]
        return super().cautions(population)

    def round(self, fed: View) -> Plan:
        kept = self.log_weights if self.redraw == "never" else np.zeros(0)
        drawn = log_gammas(self.gamma, fed.clients - len(kept), fed.rng)
        self.log_weights = np.concatenate([kept, drawn])
        among = self.log_weights[fed.available]
        yield Train(fed.weighted_sample(self.clients_per_round, np.exp(among - among.max())))
