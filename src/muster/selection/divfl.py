"""DivFL: the clients whose gradients represent those of all clients, by greedy facility location.

Balakrishnan et al., "Diverse Client Selection for Federated Learning via Submodular Maximization", 2022.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, State, Vector
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.selection import _vectors
from muster.selection._clustering import squared_row_distances
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal, signals

Search = Literal["lazy", "stochastic"]

#: Gains closer than this share of the largest are ties: duplicates differ only by rounding.
_TIE = 1e-10


@selectors.register("divfl")
@dataclass
class DivFL(Selector):
    """Choose clients so that every client's gradient is close to a chosen one."""

    clients_per_round: int
    #: Gradients are asked for once and then renewed by those that train, or asked for every round.
    refresh: Literal["init", "all"] = "init"
    #: The greedy search looks for the next client among all, or among a random few.
    greedy: Search = "lazy"
    #: Share of the clients that the stochastic search looks at in each step.
    subsample: float = 0.1
    #: Aggregation weights: the aggregator's own, or how many clients each one represents.
    agg: Literal["aggregator", "gamma"] = "aggregator"
    #: What is compared: the whole gradient, or the classification layer's.
    features: Literal["all", "last_layer"] = "all"

    _gradients: State = state(_vectors.nothing)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if not 0 < self.subsample <= 1:
            raise ConfigError(f"DivFL: subsample is {self.subsample}", expected="above 0, at most 1")

    def needs(self) -> tuple[Signal, ...]:
        part = {"part": "final_layer" if self.features == "last_layer" else "all"}
        asked = signals.build("gradient", part)
        return (asked,) if self.refresh == "all" else (asked, signals.build("mean_gradient", part))

    def gives_weights(self) -> bool:
        return self.agg == "gamma"

    def round(self, fed: View) -> Plan:
        asked, *reported = self.needs()
        if self.refresh == "all" or not len(self._gradients["clients"]):
            replies = yield Ask(fed.available, (asked,))
            if self.refresh == "all":
                self._gradients = _vectors.nothing()
            _vectors.remember(self._gradients, replies, asked.name)
        chosen, weights = self._choose(fed)
        replies = yield Train(chosen, report=tuple(reported), weights=weights)
        for signal in reported:
            _vectors.remember(self._gradients, replies, signal.name)

    def _choose(self, fed: View) -> tuple[Ints, Floats | None]:
        everybody = len(fed.available) <= self.clients_per_round
        if everybody and self.agg == "aggregator":
            return fed.available, None
        # In random order, ties that go by position are random.
        pool = fed.rng.permutation(fed.available)
        known = _vectors.knows(self._gradients, pool)
        if not known.any():
            chosen = fed.sample(self.clients_per_round)
            return chosen, np.ones(len(chosen)) if self.agg == "gamma" else None
        distances = gradient_distances(_vectors.recall(self._gradients, pool), known)
        picked = cover(distances, self.clients_per_round, self.greedy, fed.rng, self.subsample)
        by_id = np.argsort(pool[picked])
        weights = represented(distances, picked)[by_id].astype(np.float64) if self.agg == "gamma" else None
        return pool[picked[by_id]], weights


def gradient_distances(rows: Floats | Vector, known: Bools) -> Floats:
    """Euclidean distance of every pair; the median of the known ones to and among clients without a gradient."""
    distances = np.sqrt(squared_row_distances(rows[known]))
    if known.all():
        return distances
    pairs = distances[np.triu_indices(len(distances), k=1)]
    result = np.full((len(rows), len(rows)), np.median(pairs) if len(pairs) else 0.0)
    result[np.ix_(known, known)] = distances
    np.fill_diagonal(result, 0.0)
    return result


def cover(
    distances: Floats,
    count: int,
    search: Search = "lazy",
    rng: np.random.Generator | None = None,
    subsample: float = 0.1,
) -> Ints:
    """Positions of `count` clients, each the one that lowers Σ_i min over the chosen j of `distances[i, j]` most.

    The matrix is symmetric and not negative. Ties go to the lowest position. The stochastic search looks at
    max(count, subsample · clients) candidates in each step, which `rng` draws.
    """
    clients = len(distances)
    if count >= clients:
        return np.arange(clients)
    if search == "stochastic":
        if rng is None:
            raise ValueError("the stochastic search needs a generator")
        return _stochastic(distances, count, rng, max(count, int(subsample * clients)))
    return _lazy(distances, count)


def _lazy(distances: Floats, count: int) -> Ints:
    """Gains only shrink as the set grows, so the first with an up-to-date gain is the best."""
    totals = distances.sum(axis=1)
    scale = float(totals.max()) or 1.0
    chosen = [int(np.argmin(_ticks(totals, scale)))]
    nearest = distances[chosen[0]].copy()
    gains = _ticks(np.maximum(nearest - distances, 0.0).sum(axis=1), scale)
    queue = [(-gain, client) for client, gain in enumerate(gains.tolist()) if client != chosen[0]]
    heapq.heapify(queue)
    while len(chosen) < count:
        client = queue[0][1]
        gain = _ticks(np.maximum(nearest - distances[client], 0.0).sum(), scale)
        fresh = (-float(gain), client)
        if len(queue) > 1 and fresh > min(queue[1:3]):
            heapq.heapreplace(queue, fresh)
            continue
        heapq.heappop(queue)
        chosen.append(client)
        np.minimum(nearest, distances[client], out=nearest)
    return np.array(chosen, dtype=np.int64)


def _ticks(values: Floats | np.float64, scale: float) -> Floats:
    """Values counted in steps so small that only rounding makes a difference below one."""
    return np.asarray(np.round(values / (scale * _TIE)))


def _stochastic(distances: Floats, count: int, rng: np.random.Generator, candidates: int) -> Ints:
    left = np.arange(len(distances))
    nearest = np.full(len(distances), np.inf)
    chosen = np.empty(count, dtype=np.int64)
    for i in range(count):
        looked_at = np.sort(rng.choice(left, size=min(candidates, len(left)), replace=False))
        totals = np.minimum(nearest, distances[looked_at]).sum(axis=1)
        chosen[i] = looked_at[np.argmin(_ticks(totals, float(totals.max()) or 1.0))]
        nearest = np.minimum(nearest, distances[chosen[i]])
        left = left[left != chosen[i]]
    return chosen


def represented(distances: Floats, chosen: Ints) -> Ints:
    """γ: for how many clients each of `chosen` is the nearest (ties to the first)."""
    return np.bincount(np.argmin(distances[:, chosen], axis=1), minlength=len(chosen))
