"""Cluster selection: groups of similar clients, and some representatives of each.

The baseline "Cluster" of ASTraFL (2025), which describes it in one sentence; the details here are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints, State
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.selection import _vectors
from muster.selection._allocation import remainders_within_caps
from muster.selection._clustering import cosine_clusters, cosines, note_clusters, silhouette_clusters
from muster.selection._memory import ask_histograms
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal, signals

#: The largest number of groups that the silhouette may choose.
_LARGEST = 6
_DEFAULT_GROUPS = 3


@selectors.register("cluster")
@dataclass
class Cluster(Selector):
    """Group clients with similar labels (or updates), and take some from every group."""

    clients_per_round: int
    #: A number of groups, or "silhouette" (1 to 6, the best separated); None: 3, but not more than slots.
    groups: int | Literal["silhouette"] | None = None
    #: What makes clients similar: label shares, or the last update of the classification layer.
    features: Literal["labels", "update"] = "labels"
    #: Within a group: random clients, or the most central first.
    pick: Literal["random", "medoid"] = "random"

    #: Label histograms, one row per client; NaN: not known yet.
    _histograms: Floats = state(lambda: np.zeros((0, 0)))
    _updates: State = state(_vectors.nothing)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if isinstance(self.groups, int) and self.groups < 1:
            raise ConfigError(f"Cluster: groups is {self.groups}", expected="at least 1, or 'silhouette'")

    def cautions(self, population: Population) -> list[str]:
        groups = self.groups if isinstance(self.groups, int) else self.clients_per_round
        if self.groups != "silhouette" and groups == 1 and self.pick == "random":
            return [
                "cluster is random selection here: there is one group, and clients are drawn from it at random"
            ]
        if isinstance(self.groups, int) and self.groups >= population.clients > self.clients_per_round:
            return [
                f"cluster is nearly random selection here: {self.groups} groups leave each of "
                f"{population.clients} clients alone in its own; set fewer groups"
            ]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("label_histogram" if self.features == "labels" else "final_layer_update", {}),)

    def round(self, fed: View) -> Plan:
        (signal,) = self.needs()
        # In random order, ties (in the tree, for a slot, for the centre) that go by position are random.
        pool = fed.rng.permutation(fed.available)
        if self.features == "labels":
            self._histograms = yield from ask_histograms(signal, self._histograms, fed)
            yield Train(self._choose(fed, pool, np.nan_to_num(self._histograms[pool])))
        else:
            rows = _vectors.recall(self._updates, pool).astype(np.float64)
            replies = yield Train(self._choose(fed, pool, rows), report=(signal,))
            _vectors.remember(self._updates, replies, signal.name)

    def _choose(self, fed: View, pool: Ints, features: Floats) -> Ints:
        if len(pool) <= self.clients_per_round:
            return np.sort(pool)
        if self.groups == "silhouette":
            labels = silhouette_clusters(features, _LARGEST)
        else:
            labels = cosine_clusters(features, self.groups or min(self.clients_per_round, _DEFAULT_GROUPS))
        note_clusters(fed, pool, labels)
        sizes = np.bincount(labels)
        slots = remainders_within_caps(sizes.astype(np.float64), self.clients_per_round, sizes, at_least=1)
        picked = []
        for group, wanted in enumerate(slots):
            members = np.flatnonzero(labels == group)
            if self.pick == "medoid":
                picked.append(members[centrality(features[members])[:wanted]])
            else:
                picked.append(fed.sample(int(wanted), among=members))
        return np.sort(pool[np.concatenate(picked)])


def centrality(features: Floats) -> Ints:
    """Positions of the rows, the smallest mean cosine distance to the others first (ties by position)."""
    similarity = np.nan_to_num(cosines(features))
    return np.argsort(-np.round(similarity.sum(axis=1), 9), kind="stable")
