"""Round robin: no client is chosen again while another has been chosen less often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Ints
from muster.core.component import Population, grown, state
from muster.selection._ranking import lowest
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


@selectors.register("round-robin")
@dataclass
class RoundRobin(Selector):
    """Equal participation: always the clients that were chosen least often."""

    clients_per_round: int
    #: Which of those with equal counts goes first.
    order: Literal["random", "id"] = "random"
    #: What a client that joins later starts with: the smallest count of the others, or zero.
    newcomer: Literal["min", "zero"] = "min"

    chosen: Ints = state(lambda: np.zeros(0, dtype=np.int64))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def round(self, fed: View) -> Plan:
        start = self.chosen.min() if len(self.chosen) and self.newcomer == "min" else 0
        self.chosen = grown(self.chosen, fed.clients, start)
        pool = fed.available
        lots = fed.rng if self.order == "random" else None
        clients = pool[lowest(self.chosen[pool], self.clients_per_round, lots)]
        self.chosen[clients] += 1
        yield Train(clients)
