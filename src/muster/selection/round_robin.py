"""Round robin: nobody is chosen again while somebody else has been chosen less often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.arrays import Floats, Ints
from muster.component import Population, grown, state
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


def fewest(counts: Ints, count: int, tie: Floats) -> Ints:
    """Positions of the `count` smallest counts; among equal counts the smallest `tie` goes first."""
    if count >= len(counts):
        return np.arange(len(counts))
    level = np.partition(counts, count - 1)[count - 1]
    below = np.flatnonzero(counts < level)
    level_members = np.flatnonzero(counts == level)
    rest = count - len(below)
    return np.concatenate([below, level_members[np.argpartition(tie[level_members], rest - 1)[:rest]]])


@selectors.register("round-robin")
@dataclass
class RoundRobin(Selector):
    """Equal participation: always the clients that were chosen least often."""

    clients_per_round: int
    #: Who goes first among those with equal counts.
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
        tie = fed.rng.random(len(pool)) if self.order == "random" else np.arange(len(pool), dtype=np.float64)
        clients = np.sort(pool[fewest(self.chosen[pool], self.clients_per_round, tie)])
        self.chosen[clients] += 1
        yield Train(clients)
