"""Clustered sampling by size: size-weighted sampling's mean with less variance.

Algorithm 1 of Fraboni et al., "Clustered Sampling", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.selection.base import Plan, Selector, Train, View, selectors


class UrnSelector(Selector):
    """Draws one client from each of as many urns as slots; subclasses say how the urns are filled."""

    clients_per_round: int
    equal_weights: bool

    def check(self, population: Population) -> None:
        if self.clients_per_round < 1:
            name = type(self).__name__
            raise ConfigError(f"{name}: clients_per_round is {self.clients_per_round}", expected="at least 1")

    def cautions(self, population: Population) -> list[str]:
        if self.clients_per_round == 1:
            name = selectors.name_of(self)
            return [f"{name} is size-weighted sampling here: one client is drawn from one urn"]
        return super().cautions(population)

    def gives_multiplicity(self) -> bool:
        return True

    def gives_weights(self) -> bool:
        return self.equal_weights


@selectors.register("clustered-size")
@dataclass(frozen=True)
class ClusteredSize(UrnSelector):
    """Fill one urn per slot with the clients' samples, largest clients first, and draw one client from each."""

    clients_per_round: int
    #: Count every draw alike, which makes the mean unbiased; false leaves the weights to the aggregator.
    equal_weights: bool = True

    def round(self, fed: View) -> Plan:
        # In random order: chance decides which of equally large clients share an urn, or are split over two.
        pool = fed.rng.permutation(fed.available)
        urns = size_urns(fed.sizes[pool], self.clients_per_round)
        yield train_draws(pool[draw(urns, fed.rng)], self.equal_weights)


@dataclass(frozen=True)
class Urns:
    """Urns of equal capacity, side by side: pieces of clients' tokens in the order in which they fill them."""

    #: Position of the client that each piece belongs to.
    clients: Ints
    #: Tokens in each piece.
    tokens: Ints
    #: Tokens in each urn.
    capacity: int

    @property
    def count(self) -> int:
        return int(self.tokens.sum()) // self.capacity

    def probabilities(self, clients: int) -> Floats:
        """Urns × clients: how likely each urn yields each client."""
        ends = np.cumsum(self.tokens)
        starts = ends - self.tokens
        edges = self.capacity * np.arange(self.count + 1)
        shares = np.zeros((self.count, clients))
        for urn in range(self.count):
            inside = np.minimum(ends, edges[urn + 1]) - np.maximum(starts, edges[urn])
            np.add.at(shares[urn], self.clients, np.maximum(inside, 0) / self.capacity)
        return shares


def size_urns(sizes: Ints, count: int) -> Urns:
    """`count` urns, filled with `count`·n_k tokens of each client, largest clients first (ties by position)."""
    order = np.argsort(-sizes, kind="stable")
    return Urns(order, count * sizes[order], int(sizes.sum()))


def draw(urns: Urns, rng: np.random.Generator) -> Ints:
    """One client from each urn. Integers throughout: the probabilities are exact."""
    tokens = np.arange(urns.count) * urns.capacity + rng.integers(urns.capacity, size=urns.count)
    return urns.clients[np.searchsorted(np.cumsum(urns.tokens), tokens, side="right")]


def train_draws(draws: Ints, equal_weights: bool) -> Train:
    """Train the clients that were drawn, counting each as often as it was."""
    clients, times = np.unique(draws, return_counts=True)
    return Train(clients, multiplicity=times, weights=np.ones(len(clients)) if equal_weights else None)
