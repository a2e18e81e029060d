"""FedDiverse's ablation: known tables of counts, and weights that even out their sum (Németh et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from muster.core.arrays import Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._memory import ask_once, told
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.selection.feddiverse import all_train
from muster.signals.base import Signal
from muster.signals.heterogeneity import InteractionMatrix

#: Ridge, as a share of the mean variance of a client's table: makes the best weights unique.
RIDGE = 1e-6
#: What adding a client to the cohort changes may differ by this share, and is a tie.
_TIE = 1e-12
#: The programme takes time in proportion to the cube of the clients: minutes, beyond this many.
MAX_CLIENTS = 4000


@selectors.register("feddiverse-qp")
@dataclass
class FedDiverseQP(Selector):
    """Draw clients with the probabilities that balance classes and attributes of all data together."""

    clients_per_round: int
    #: "programme": probabilities from the convex programme; "greedy": add the client that evens the cohort's table
    #: most.
    rule: Literal["programme", "greedy"] = "programme"
    #: ρ: share of the probability that is spread over all clients, so that none is left out for ever.
    floor: float = 0.0
    #: T0: rounds of FedAvg in which all clients train with equal weight before clients are drawn.
    pretraining_rounds: int = 0

    #: A row for every client: its table of counts, class by class.
    matrices: Floats = state(lambda: np.zeros((0, 0)))
    #: Probabilities from the programme; 0 for those whose table is not known.
    omega: Floats = state(lambda: np.zeros(0))
    known: int = state(int)
    pretrained: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"FedDiverseQP: floor is {self.floor}", expected="0 to 1")
        if self.pretraining_rounds < 0:
            raise ConfigError(
                f"FedDiverseQP: pretraining_rounds is {self.pretraining_rounds}", expected="0 or more"
            )
        if self.rule == "programme" and population.clients > MAX_CLIENTS:
            raise ConfigError(
                f"FedDiverseQP: the programme for {population.clients} clients would take too long",
                expected=f"at most {MAX_CLIENTS} clients",
                fix="use rule = 'greedy'",
            )

    def cautions(self, population: Population) -> list[str]:
        if self.pretraining_rounds >= population.rounds:
            return ["feddiverse-qp selects no one here: all rounds are pre-training, in which every client trains"]
        return super().cautions(population)

    def gives_fedavg(self) -> bool:
        return self.pretraining_rounds > 0

    def needs(self) -> tuple[Signal, ...]:
        return (InteractionMatrix(),)

    def round(self, fed: View) -> Plan:
        if self.pretrained < self.pretraining_rounds:
            self.pretrained += 1
            yield all_train(fed)
            return
        self.matrices = yield from ask_once(InteractionMatrix(), self.matrices, fed)
        if self.rule == "greedy":
            yield Train(self._greedy(fed))
        else:
            self._solve(fed)
            yield Train(fed.weighted_sample(self.clients_per_round, self.omega[fed.available]))

    def _solve(self, fed: View) -> None:
        """The programme for all clients whose tables are known, again only when more have become known."""
        self.omega = grown(self.omega, fed.clients, 0.0)
        known = np.flatnonzero(told(self.matrices))
        if len(known) != self.known:
            best = weights(self.matrices[known])
            self.omega[known] = (1 - self.floor) * best + self.floor / len(known)
            self.known = len(known)

    def _greedy(self, fed: View) -> Ints:
        count = min(self.clients_per_round, len(fed.available))
        pool = fed.available[told(self.matrices)[fed.available]]
        chosen = pool[greedy(self.matrices[pool], count, fed.rng)]
        if len(chosen) < count:
            # Clients that have not reported their tables only fill free places.
            chosen = np.concatenate([chosen, fed.sample(count - len(chosen), np.setdiff1d(fed.available, pool))])
        return np.sort(chosen)


def weights(matrices: Floats) -> Floats:
    """Shares ω ≥ 0, Σω = 1, for which Σ ω_k · table_k varies least over its cells; one row per table.

    With d_k the table minus its mean, this is the point of the convex hull of the d_k that lies nearest to zero.
    Such a point is a non-negative least-squares solution x of "Σ x_k d_k = 0 and Σ x_k = 1", divided by its sum:
    for any direction, the best length depends on the distance alone, so both problems rank directions alike.
    """
    clients, _ = matrices.shape
    deviations = matrices - matrices.mean(axis=1, keepdims=True)
    scale = np.sqrt((deviations**2).sum() / clients)
    if not scale > 0:
        return np.full(clients, 1 / clients)
    equations = np.vstack([deviations.T / scale, np.sqrt(RIDGE) * np.eye(clients), np.ones((1, clients))])
    wanted = np.zeros(len(equations))
    wanted[-1] = 1
    solution, _ = nnls(equations, wanted, maxiter=30 * clients)
    return np.asarray(solution / solution.sum())


def greedy(matrices: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Positions of `count` clients: one at random, then always the one that leaves the summed table most even.

    Ties are broken at random.
    """
    clients = len(matrices)
    if count >= clients:
        return np.arange(clients)
    deviations = matrices - matrices.mean(axis=1, keepdims=True)
    squares = (deviations**2).sum(axis=1)
    picked = [int(rng.integers(clients))]
    while len(picked) < count:
        together = deviations[picked].sum(axis=0)
        growth = 2 * (deviations @ together) + squares
        growth[picked] = np.inf
        # Sums in another order differ by rounding.
        least = growth.min() + _TIE * (squares.max() + np.abs(growth[growth < np.inf]).max())
        picked.append(int(rng.choice(np.flatnonzero(growth <= least))))
    return np.array(picked, dtype=np.int64)
