"""Uniform random selection, the default of FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.component import Population
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


@selectors.register("random")
@dataclass
class RandomSelection(Selector):
    """A uniformly random set of clients each round."""

    clients_per_round: int

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def cautions(self, population: Population) -> list[str]:
        """None: asking for all clients at random is a deliberate choice."""
        return []

    def round(self, fed: View) -> Plan:
        yield Train(fed.sample(self.clients_per_round))
