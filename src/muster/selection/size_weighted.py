"""Random selection with probabilities proportional to sample counts.

With replacement it is the scheme that FedProx analyses (Li et al., 2020), unbiased with an equal mean; without
replacement it is a baseline of HiCS-FL (Chen and Vikalo, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.component import Population
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


@selectors.register("size-weighted")
@dataclass
class SizeWeighted(Selector):
    """Random clients, those with more samples more often."""

    clients_per_round: int
    #: Draw every time from all clients: the same client may be drawn several times and then counts as often.
    replace: bool = False
    #: All chosen clients count alike in the aggregation (times their multiplicity), which makes sampling with
    #: replacement unbiased; otherwise the aggregation weights them itself.
    equal_weights: bool = True

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def cautions(self, population: Population) -> list[str]:
        if not self.replace and len(np.unique(population.sizes)) == 1:
            return ["size-weighted is random selection here: all clients have the same number of samples"]
        return super().cautions(population)

    def gives_multiplicity(self) -> bool:
        return self.replace

    def gives_weights(self) -> bool:
        return self.equal_weights

    def round(self, fed: View) -> Plan:
        pool = fed.available
        sizes = fed.sizes[pool].astype(np.float64)
        times = None
        if self.replace:
            draws = fed.rng.choice(pool, size=self.clients_per_round, p=sizes / sizes.sum())
            clients, times = np.unique(draws, return_counts=True)
        else:
            clients = fed.weighted_sample(self.clients_per_round, sizes)
        yield Train(clients, multiplicity=times, weights=np.ones(len(clients)) if self.equal_weights else None)
