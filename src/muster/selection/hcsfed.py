"""HCSFed: clusters of compressed updates, slots by size and variability, importance sampling inside.

Song et al., "Fast Heterogeneous Federated Learning with Hybrid Client Selection", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from muster.core.arrays import Bools, Floats, Ints, State
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.core.sampling import weighted_sample
from muster.selection import _vectors
from muster.selection._clustering import note_clusters
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal, signals

_TOLERANCE = 1e-12
#: Keeps the variability of a cluster with one client finite.
_SMALL = 1e-6


@selectors.register("hcsfed")
@dataclass
class HCSFed(Selector):
    """Cluster clients once by compressed updates; more slots for large and varied clusters."""

    clients_per_round: int
    #: G: number of clusters.
    groups: int = 3
    #: r: numbers in a compressed update for each parameter of the model.
    ratio: float = 1e-5
    #: Compress the update, or the trained weights.
    compress: Literal["update", "weights"] = "update"
    #: How much a cluster varies: Σ of its pairs' squared distances ÷ (N_g − 1), or standard deviation (Neyman).
    alloc: Literal["pairs", "neyman"] = "pairs"
    #: Count every update alike; false leaves the weights to the aggregator.
    equal_weights: bool = True

    _tried: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    _features: State = state(_vectors.nothing)
    #: One row per cluster; None before the first round, in which every client trains.
    _centres: Floats | None = state(lambda: None)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.groups < 1:
            raise ConfigError(f"HCSFed: groups is {self.groups}", expected="at least 1")
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"HCSFed: ratio is {self.ratio}", expected="above 0, at most 1")

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("compressed_update", {"ratio": self.ratio, "of": self.compress}),)

    def cautions(self, population: Population) -> list[str]:
        if population.rounds == 1:
            return ["hcsfed selects no one here: in its first round every client trains, and it is the only one"]
        if self.groups == 1:
            return ["hcsfed makes no clusters here: with groups = 1 the length of updates is all that counts"]
        parameters = population.spec.trainable.stop
        if self.ratio * parameters < 2 and self.clients_per_round < population.clients:
            return [
                f"hcsfed sees one number of every client here: ratio = {self.ratio:g} of {parameters:,} "
                "parameters; set a larger ratio"
            ]
        return super().cautions(population)

    def gives_weights(self) -> bool:
        return self.equal_weights

    def round(self, fed: View) -> Plan:
        (report,) = self.needs()
        self._tried = grown(self._tried, fed.clients, False)
        if self._centres is None:
            chosen = fed.available
        else:
            untried = fed.sample(self.clients_per_round, among=fed.available[~self._tried[fed.available]])
            pool = np.setdiff1d(fed.available, untried)
            drawn = self._draw(fed, pool, self.clients_per_round - len(untried), self._centres)
            chosen = np.sort(np.concatenate([untried, drawn]))
        self._tried[chosen] = True
        unknown = not _vectors.knows(self._features, chosen).all()
        weights = np.ones(len(chosen)) if self.equal_weights else None
        replies = yield Train(chosen, report=(report,) if unknown else (), weights=weights)
        if unknown:
            _vectors.remember(self._features, replies, report.name, keep_first=True)
        if self._centres is None and len(self._features["clients"]):
            self._centres = group_centres(self._features["rows"].astype(np.float64), self.groups, fed.rng)

    def _draw(self, fed: View, pool: Ints, count: int, centres: Floats) -> Ints:
        if count >= len(pool):
            return pool
        features = _vectors.recall(self._features, pool).astype(np.float64)
        features[~_vectors.knows(self._features, pool)] = self._features["rows"].mean(axis=0)
        labels = np.argmin(cdist(features, centres), axis=1)
        note_clusters(fed, pool, labels)
        members = [np.flatnonzero(labels == group) for group in np.unique(labels)]
        sizes = np.array([len(group) for group in members])
        varied = np.array([variability(features[group], self.alloc) for group in members])
        slots = allocate(sizes, varied, count, fed.rng)
        norms = np.linalg.norm(features, axis=1)
        picked = [
            group[weighted_sample(norms[group], wanted, fed.rng)]
            for group, wanted in zip(members, slots, strict=True)
            if wanted > 0
        ]
        return pool[np.concatenate(picked)] if picked else pool[:0]


def group_centres(features: Floats, groups: int, rng: np.random.Generator) -> Floats:
    """Centres of k-means with `groups` clusters (fewer where there are fewer distinct rows)."""
    groups = min(groups, len(np.unique(features, axis=0)))
    # k-means++ and restarts draw from a seed of ours, so that the result depends on the round's generator alone.
    seed = int(rng.integers(2**31))
    return np.asarray(KMeans(groups, n_init=10, tol=_TOLERANCE, random_state=seed).fit(features).cluster_centers_)


def variability(features: Floats, alloc: Literal["pairs", "neyman"] = "pairs") -> float:
    """V_g: Σ over ordered pairs of the squared distance / (N_g − 1 + 10⁻⁶), or the standard deviation."""
    spread = float(np.sum((features - features.mean(axis=0)) ** 2))
    if alloc == "neyman":
        return float(np.sqrt(spread / len(features)))
    return 2 * len(features) * spread / (len(features) - 1 + _SMALL)


def shares(sizes: Ints, varied: Floats, count: int) -> Floats:
    """Exact numbers of slots ∝ size · variability; ∝ size where nothing varies."""
    weights = sizes * varied
    if not weights.sum() > 0:
        weights = sizes.astype(np.float64)
    return np.asarray(count * weights / weights.sum())


def allocate(sizes: Ints, varied: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Whole numbers of slots: rounded, capped at the sizes, then mended one by one at random clusters."""
    count = min(count, int(sizes.sum()))
    slots = np.minimum(np.floor(shares(sizes, varied, count) + 0.5).astype(np.int64), sizes)
    while (missing := count - int(slots.sum())) != 0:
        possible = np.flatnonzero(slots < sizes if missing > 0 else slots > 0)
        slots[rng.choice(possible)] += np.sign(missing)
    return slots
