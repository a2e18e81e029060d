"""Clustered sampling by similarity: one draw from each of several urns of clients with similar updates.

Algorithm 2 of Fraboni et al., "Clustered Sampling", 2021.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from muster.core.arrays import Floats, Ints, State, Vector
from muster.core.component import state
from muster.selection import _vectors
from muster.selection._clustering import angles, renumbered, squared_row_distances, ward_on_rows
from muster.selection.base import Plan, View, selectors
from muster.selection.clustered_size import Urns, UrnSelector, draw, size_urns, train_draws
from muster.signals.base import Signal, signals

Measure = Literal["arccos", "L2", "L1"]

_SIGNALS = {"update": "update", "last_layer": "final_layer_update"}


@selectors.register("clustered-similarity")
@dataclass
class ClusteredSimilarity(UrnSelector):
    """Draw one client from each of as many urns as slots, clients with similar updates in one urn."""

    clients_per_round: int
    #: How updates are compared: angle, squared Euclidean distance, or sum of absolute differences.
    measure: Measure = "arccos"
    #: What is compared: the whole update, or its classification layer (for large models).
    features: Literal["update", "last_layer"] = "update"
    #: Count every draw alike, which makes the mean unbiased; false leaves the weights to the aggregator.
    equal_weights: bool = True

    _updates: State = state(_vectors.nothing)

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build(_SIGNALS[self.features], {}),)

    def round(self, fed: View) -> Plan:
        (report,) = self.needs()
        # In random order, ties in the tree and between sizes are random.
        pool = fed.rng.permutation(fed.available)
        rows = _vectors.recall(self._updates, pool)
        urns = similar_urns(rows, fed.sizes[pool], self.clients_per_round, fed.rng, self.measure)
        request = train_draws(pool[draw(urns, fed.rng)], self.equal_weights)
        replies = yield dataclasses.replace(request, report=(report,))
        _vectors.remember(self._updates, replies, report.name)


def similar_urns(
    rows: Floats | Vector, sizes: Ints, count: int, rng: np.random.Generator, measure: Measure = "arccos"
) -> Urns:
    """`count` urns in which every client has `count`·n_k tokens, together with those whose rows are similar.

    While fewer than two rows are non-zero there is nothing to compare, and the urns are those by size.
    """
    if np.count_nonzero(np.any(rows, axis=1)) < 2:
        return size_urns(sizes, count)
    capacity = int(sizes.sum())
    # A client with more tokens than an urn holds gets whole urns to itself; what remains is less than one urn.
    full, rest = np.divmod(count * sizes, capacity)
    small = np.flatnonzero(rest)
    labels = light_clusters(ward_on_rows(pairwise(rows[small], measure)), rest[small], capacity)
    shared = _fill(small, rest[small], labels, capacity, rng)
    big = np.repeat(np.arange(len(sizes)), full)
    return Urns(
        np.concatenate([big, shared.clients]),
        np.concatenate([np.full(len(big), capacity), shared.tokens]),
        capacity,
    )


def pairwise(rows: Floats | Vector, measure: Measure) -> Floats:
    """The measure for every pair of rows; an angle with a zero vector is 0."""
    match measure:
        case "arccos":
            return angles(rows)
        case "L2":
            return squared_row_distances(rows)
        case "L1":
            return np.asarray(cdist(rows, rows, "cityblock"))


def light_clusters(tree: Floats, tokens: Ints, capacity: int) -> Ints:
    """Labels of the largest subtrees that hold no more than `capacity` tokens."""
    items, merges = len(tokens), len(tree)
    held = np.concatenate([tokens, np.zeros(merges, dtype=np.int64)])
    children = tree[:, :2].astype(np.int64)
    for merge in range(merges):
        held[items + merge] = held[children[merge]].sum()
    light = np.flatnonzero(held[items:] <= capacity)
    edges = (np.ones(2 * len(light)), (np.repeat(items + light, 2), children[light].ravel()))
    nodes = items + merges
    labels = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)[1]
    return renumbered(labels[:items].astype(np.int64))


def _fill(clients: Ints, tokens: Ints, labels: Ints, capacity: int, rng: np.random.Generator) -> Urns:
    """Urns around the heaviest clusters; the others are poured in, lightest cluster first, at random within."""
    urns = int(tokens.sum()) // capacity
    weight = np.bincount(labels, tokens)
    by_weight = np.argsort(-weight, kind="stable")
    seeds, others = by_weight[:urns], by_weight[urns:][::-1]
    poured = np.concatenate([rng.permutation(np.flatnonzero(labels == c)) for c in others] or [labels[:0]])
    left = tokens.copy()
    pieces: list[tuple[int, int]] = []
    source = 0
    for seed in seeds:
        inside = np.flatnonzero(labels == seed)
        pieces.extend((int(clients[i]), int(tokens[i])) for i in inside)
        room = capacity - int(tokens[inside].sum())
        while room > 0:
            client = poured[source]
            part = min(room, int(left[client]))
            pieces.append((int(clients[client]), part))
            left[client] -= part
            room -= part
            source += int(left[client] == 0)
    array = np.array(pieces, dtype=np.int64).reshape(-1, 2)
    return Urns(array[:, 0], array[:, 1], capacity)
