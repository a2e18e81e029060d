"""HiCS-FL: hierarchical clustered sampling by the label entropy that bias updates reveal (Chen, Vikalo, 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import entr, log_softmax, softmax

from muster.core.arrays import Bools, Floats, Ints, State, Vector
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.selection import _vectors
from muster.selection._clustering import angles, cut, note_clusters, ward_on_distances, ward_on_rows
from muster.selection.base import Plan, Selector, Train, View, check_count, no_second_turn, selectors
from muster.selection.clustered_similarity import similar_urns
from muster.selection.clustered_size import draw
from muster.signals.base import Signal, signals

_SIGNALS = {"bias": "bias_update", "weight_row_mean": "final_layer_update"}


@selectors.register("hics")
@dataclass
class Hics(Selector):
    """Sample clusters of similar clients, those that seem to have balanced labels first."""

    clients_per_round: int
    #: T of the softmax that turns a bias update into class shares; "auto" follows the size of the updates.
    temperature: float | Literal["auto"] = 0.0025
    #: λ: weight of the entropy difference relative to the angle.
    lam: float = 10.0
    #: M: number of clusters; None: as many as clients per round.
    groups: int | None = None
    #: γ₀: how strongly balanced clusters are preferred in the first round; falls linearly to 0.
    gamma: float = 4.0
    #: Ward's clustering of the rows of the distance matrix, or of the distances themselves.
    ward_on: Literal["rows", "condensed"] = "rows"
    #: What the entropy is estimated from: the bias, or the mean of the final layer's weights of each class.
    signal: Literal["bias", "weight_row_mean"] = "bias"
    #: How clients are drawn within a cluster: by number of samples, or uniformly.
    within: Literal["size", "uniform"] = "size"
    #: Keep every client's first update for good.
    freeze_after_warmup: bool = False
    #: Use clustered sampling by similarity when the variance of the entropies is at least this; None: never.
    fallback_var: float | None = None
    #: Count every update alike, as the paper does; false leaves the weights to the aggregator.
    equal_weights: bool = True

    _tried: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    _updates: State = state(_vectors.nothing)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.temperature != "auto" and not self.temperature > 0:
            raise ConfigError(f"Hics: temperature is {self.temperature}", expected="a positive number, or 'auto'")
        if not (self.lam >= 0 and self.gamma >= 0):
            raise ConfigError(f"Hics: lam is {self.lam}, gamma is {self.gamma}", expected="both at least 0")
        if self.groups is not None and self.groups < 1:
            raise ConfigError(f"Hics: groups is {self.groups}", expected="at least 1")
        if population.spec.final_weight.shape[0] < 2:
            raise ConfigError(
                "Hics estimates label entropy from the classification layer, but that has one output only",
                expected="one output for each class",
                fix="use a model with two outputs for a binary problem, or another selection method",
            )

    def cautions(self, population: Population) -> list[str]:
        text = no_second_turn(self, population)
        if not text and (self.groups or self.clients_per_round) == 1:
            text = "hics makes no use of its estimates here: all clients are in one group; set more groups"
        elif not text and not self.gamma:
            text = "hics prefers no group here: with gamma = 0 balanced ones are as likely as others"
        return [text] if text else super().cautions(population)

    def needs_classes(self) -> bool:
        return True

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build(_SIGNALS[self.signal], {}),)

    def gives_multiplicity(self) -> bool:
        return self.fallback_var is not None

    def gives_weights(self) -> bool:
        return self.equal_weights

    def round(self, fed: View) -> Plan:
        (report,) = self.needs()
        self._tried = grown(self._tried, fed.clients, False)
        # The warm-up, and the first turn of a client that joins later, are the same rule: the untried come first.
        untried = fed.sample(self.clients_per_round, among=fed.available[~self._tried[fed.available]])
        pool = np.setdiff1d(fed.available, untried)
        drawn = self._draw(fed, pool, self.clients_per_round - len(untried))
        chosen, times = np.unique(np.concatenate([untried, drawn]), return_counts=True)
        self._tried[chosen] = True
        replies = yield Train(
            chosen,
            report=(report,),
            multiplicity=times if self.gives_multiplicity() else None,
            weights=np.ones(len(chosen)) if self.equal_weights else None,
        )
        _vectors.remember(self._updates, replies, report.name, keep_first=self.freeze_after_warmup)

    def depends_on_length(self) -> str:
        return "hics lets its preference for balanced groups fade until the last round" if self.gamma else ""

    def _draw(self, fed: View, pool: Ints, count: int) -> Ints:
        """`count` clients of `pool`, which have all had their first turn."""
        if count <= 0 or count >= len(pool):
            return pool[: max(count, 0)]
        # In random order, ties in the tree of clusters are random.
        pool = fed.rng.permutation(pool)
        known, rows = _vectors.knows(self._updates, pool), _vectors.recall(self._updates, pool)
        entropies = self._entropies(rows, known, fed.spec)
        if self.fallback_var is not None and np.var(entropies) >= self.fallback_var:
            return pool[draw(similar_urns(rows, fed.sizes[pool], count, fed.rng), fed.rng)]
        measure = distances(rows, entropies, self.lam, known)
        tree = ward_on_rows(measure) if self.ward_on == "rows" else ward_on_distances(measure)
        labels = cut(tree, self.groups or self.clients_per_round)
        note_clusters(fed, pool, labels)
        means = np.bincount(labels, entropies) / np.bincount(labels)
        shares = group_shares(means, self.gamma * (1 - fed.round / fed.rounds))
        weights = fed.sizes[pool].astype(np.float64) if self.within == "size" else np.ones(len(pool))
        return pool[sample_from_groups(labels, shares, weights, count, fed.rng)]

    def _entropies(self, rows: Vector, known: Bools, spec: ParameterSpec) -> Floats:
        if not known.any():
            return np.zeros(len(rows))
        scores = rows[known] if self.signal == "bias" else class_means(rows[known], spec)
        estimated = entropy(scores, self.temperature)
        result = np.full(len(rows), estimated.mean())
        result[known] = estimated
        return result


def entropy(bias_updates: Floats | Vector, temperature: float | Literal["auto"] = 0.0025) -> Floats:
    """Estimated label entropy of each client, in nats: of the softmax of its row divided by the temperature.

    "auto" takes the median over clients of the row's standard deviation. One row alone gives one number.
    """
    rows = np.asarray(bias_updates, dtype=np.float64)
    if temperature == "auto":
        spread = float(np.median(rows.std(axis=-1)))
        temperature = spread if spread > 0 else 1.0
    shares = np.exp(log_softmax(rows / temperature, axis=-1))
    return np.asarray(entr(shares).sum(axis=-1))


def distances(rows: Floats | Vector, entropies: Floats, lam: float, known: Bools | None = None) -> Floats:
    """Angle + λ·|difference of entropy| for every pair.

    The angle is 0 where a vector is zero, and π/2 to and among the clients that are not `known`.
    """
    result = angles(rows)
    if known is not None and not known.all():
        result[~known, :] = np.pi / 2
        result[:, ~known] = np.pi / 2
        np.fill_diagonal(result, 0.0)
    result += lam * np.abs(entropies[:, None] - entropies[None, :])
    return result


def group_shares(mean_entropies: Floats, gamma: float) -> Floats:
    """Probability of each cluster."""
    return np.asarray(softmax(gamma * mean_entropies))


def sample_from_groups(
    labels: Ints, shares: Floats, weights: Floats, count: int, rng: np.random.Generator
) -> Ints:
    """`count` distinct positions: each time a cluster by its share, then a client in it by weight.

    Clusters that have no client left take no part.
    """
    left = np.asarray(weights, dtype=np.float64).copy()
    members = [np.flatnonzero(labels == group) for group in range(len(shares))]
    remaining = np.bincount(labels, minlength=len(shares))
    chosen = np.empty(min(count, len(labels)), dtype=np.int64)
    for i in range(len(chosen)):
        open_shares = np.where(remaining > 0, shares, 0.0)
        if not open_shares.sum() > 0:  # the shares of all open clusters have underflowed
            open_shares = (remaining > 0).astype(np.float64)
        group = rng.choice(len(shares), p=open_shares / open_shares.sum())
        odds = left[members[group]]
        chosen[i] = rng.choice(members[group], p=odds / odds.sum())
        left[chosen[i]] = 0.0
        remaining[group] -= 1
    return chosen


def class_means(rows: Vector, spec: ParameterSpec) -> Floats:
    """Mean of each class's weights, from rows that hold the update of the whole final layer."""
    weight = spec.final_weight
    start = weight.start - spec.final_layer.start
    flat = rows[:, start : start + weight.stop - weight.start].astype(np.float64)
    return np.asarray(flat.reshape(len(rows), weight.shape[0], -1).mean(axis=2))
