"""ASTraFL: more slots for homogeneous clusters, a different rule inside each kind of cluster (Xie et al.).

Clusters whose labels look like those of the federation train their clients with the highest loss; skewed clusters
train those whose samples differ most from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.heterogeneity.divergences import euclidean, shares
from muster.heterogeneity.metrics import entropies
from muster.selection._allocation import remainders_within_caps
from muster.selection._clustering import note_clusters, renumbered, silhouette_clusters
from muster.selection._memory import ask_histograms, told
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, no_second_turn, selectors
from muster.signals.base import Signal
from muster.signals.content import ContentDiversity
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss
from muster.signals.updates import FinalLayerUpdate

Budget = Literal["strict", "ceil"]
Measure = Literal["l2", "mu21", "entropy", "nll"]

#: Quotas that miss an integer, and homogeneities that pass the threshold, by less than this do so by rounding.
_ROUNDING = 1e-9


@selectors.register("astrafl")
@dataclass
class ASTraFL(Selector):
    """Slots for clusters by homogeneity; inside, high loss where labels are even and diverse content elsewhere."""

    clients_per_round: int
    #: Homogeneity: distance to the pooled labels ("l2"), to uniform labels ("mu21"), label entropy, or model fit.
    homogeneity: Measure = "l2"
    #: δ: clusters that are more homogeneous use the loss; "mean": the mean homogeneity of this round's clients.
    threshold: float | Literal["mean"] = "mean"
    #: "value": the highest loss goes first; "rate": the fastest relative decrease since the client's last answer.
    loss: Literal["value", "rate"] = "value"
    #: λ: this times the homogeneity is added to the loss score.
    homogeneity_weight: float = 0.0
    #: "updates": cluster by the latest final-layer update of each client, for which every client trains once
    #: before any trains again; "labels": by labels, without first turns.
    features: Literal["updates", "labels"] = "updates"
    #: What content diversity is measured on.
    emb: Literal["features", "input"] = "features"
    max_clusters: int = 6
    #: "strict": exactly `clients_per_round`; "ceil": every cluster's quota rounded up, as written in the paper.
    budget: Budget = "strict"

    histograms: Floats = state(lambda: np.zeros((0, 0)))
    updates: npt.NDArray[np.float32] = state(lambda: np.zeros((0, 0), dtype=np.float32))
    #: Which clients have had a first turn, whatever the outcome.
    tried: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    previous_losses: Floats = state(lambda: np.zeros(0))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.max_clusters < 2:
            raise ConfigError(f"ASTraFL: max_clusters is {self.max_clusters}", expected="at least 2")
        if not (self.homogeneity_weight >= 0 and np.isfinite(self.homogeneity_weight)):
            raise ConfigError(f"ASTraFL: homogeneity_weight is {self.homogeneity_weight}", expected="0 or more")
        if not isinstance(self.threshold, str) and not np.isfinite(self.threshold):
            raise ConfigError(f"ASTraFL: threshold is {self.threshold}", expected="a finite number or 'mean'")

    def cautions(self, population: Population) -> list[str]:
        text = no_second_turn(self, population) if self.features == "updates" else ""
        if not text and not isinstance(self.threshold, str):
            least, most = (1.0, 2.0) if self.homogeneity == "mu21" else (0.0, 1.0)
            if self.threshold >= most:
                text = "astrafl makes no use of losses here: no cluster is more homogeneous than its threshold"
            elif self.threshold < least:
                text = "astrafl makes no use of content here: every cluster is more homogeneous than its threshold"
        return [text] if text else super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        wanted = (LabelHistogram(), Loss(), ContentDiversity(emb=self.emb))
        return (*wanted, FinalLayerUpdate()) if self.features == "updates" else wanted

    def round(self, fed: View) -> Plan:
        self._grow(fed)
        self.histograms = yield from ask_histograms(LabelHistogram(), self.histograms, fed)
        probed = yield Ask(fed.available, (Loss(), ContentDiversity(emb=self.emb)))
        loss, content = np.full((2, fed.clients), np.nan)
        loss[probed.clients], content[probed.clients] = probed["loss"], probed["content_diversity"]
        clients = self._choose(fed, loss, content)
        self.tried[clients] = True
        self.previous_losses = np.where(np.isfinite(loss), loss, self.previous_losses)
        if self.features == "labels":
            yield Train(clients)
            return
        trained = (yield Train(clients, report=(FinalLayerUpdate(),))).finite("final_layer_update")
        self.updates[trained.clients] = trained["final_layer_update"]

    def _grow(self, fed: View) -> None:
        width = fed.spec.final_layer.stop - fed.spec.final_layer.start if self.features == "updates" else 0
        updates = self.updates if len(self.updates) else np.zeros((0, width), dtype=np.float32)
        self.updates = grown(updates, fed.clients, np.nan)
        self.tried = grown(self.tried, fed.clients, self.features == "labels")
        self.previous_losses = grown(self.previous_losses, fed.clients, np.nan)

    def _choose(self, fed: View, loss: Floats, content: Floats) -> Ints:
        count = min(self.clients_per_round, len(fed.available))
        # In random order, ties (in the tree, for a slot, of scores) that go by position are random.
        pool = fed.rng.permutation(fed.available[told(self.histograms)[fed.available]])
        clusters = self._clusters(fed, pool)
        chosen = fed.sample(count, fed.available[~self.tried[fed.available]])
        left = ~np.isin(pool, chosen)
        if left.any() and len(chosen) < count:
            more = self._from_clusters(pool[left], clusters[left], count - len(chosen), loss, content)
            chosen = np.concatenate([chosen, more])
        if len(chosen) < count:
            # Clients that have never reported their labels have no cluster: they only fill free places.
            rest = np.setdiff1d(fed.available, chosen)
            chosen = np.concatenate([chosen, fed.sample(count - len(chosen), rest)])
        return np.sort(chosen)

    def _clusters(self, fed: View, pool: Ints) -> Ints:
        labels = silhouette_clusters(self._features(pool), self.max_clusters)
        note_clusters(fed, pool, labels)
        return labels

    def _features(self, pool: Ints) -> np.ndarray[Any, Any]:
        """What the clients are clustered by: updates once all of these have had a turn, label shares before.

        A client whose turn brought no update has a row of zeros, hence no direction.
        """
        updates = self.updates[pool]
        if updates.shape[1] and self.tried[pool].all() and np.isfinite(updates).any():
            return np.nan_to_num(updates)
        return shares(self.histograms[pool])

    def _from_clusters(self, pool: Ints, clusters: Ints, count: int, loss: Floats, content: Floats) -> Ints:
        """`count` clients of `pool`, each cluster's part chosen by its own rule."""
        loss, content, clusters = loss[pool], content[pool], renumbered(clusters)
        everybody = np.nansum(self.histograms, axis=0)
        even = homogeneity_of(self.histograms[pool], self.homogeneity, pooled=everybody, losses=loss)
        delta = even.mean() if self.threshold == "mean" else self.threshold
        by_loss = self._loss_scores(pool, loss) + self.homogeneity_weight * even
        picks = []
        fraction = min(1.0, count / len(pool))
        for cluster, take in enumerate(quotas(even, clusters, fraction, budget=self.budget)):
            members = np.flatnonzero(clusters == cluster)
            homogeneous = even[members].mean() > delta + _ROUNDING
            scores = by_loss[members] if homogeneous else content[members]
            picks.append(pool[members[ranked(scores, loss[members])[:take]]])
        return np.concatenate(picks)

    def _loss_scores(self, pool: Ints, loss: Floats) -> Floats:
        if self.loss == "value":
            return loss
        before = self.previous_losses[pool]
        return np.asarray((before - loss) / np.maximum(before, 1e-12))


def quotas(
    homogeneity: Floats,
    clusters: npt.ArrayLike | Sequence[Sequence[int]],
    fraction: float,
    *,
    budget: Budget = "strict",
) -> Ints:
    """How many clients each cluster may send when `fraction` of all clients are selected.

    `clusters` has a label 0, 1, … for every client, or lists the members of every cluster. A cluster's share is
    its part of the total homogeneity. "strict" hands out exactly ⌊fraction · clients⌋ (at least 1) by largest
    remainder, "ceil" rounds every quota up; neither exceeds the cluster's size.
    """
    homogeneity = np.asarray(homogeneity, dtype=np.float64)
    labels = _labels(clusters, len(homogeneity))
    members = np.bincount(labels)
    total = np.bincount(labels, weights=homogeneity)
    portion = total / total.sum() if total.sum() > 0 else members / members.sum()
    wanted = fraction * len(homogeneity)
    if budget == "ceil":
        return np.asarray(np.minimum(np.ceil(portion * wanted - _ROUNDING), members), dtype=np.int64)
    return remainders_within_caps(portion, max(1, int(wanted + _ROUNDING)), members)


def _labels(clusters: Any, clients: int) -> Ints:
    if all(np.ndim(cluster) == 0 for cluster in clusters):
        return np.asarray(clusters, dtype=np.int64)
    labels = np.zeros(clients, dtype=np.int64)
    for label, members in enumerate(clusters):
        labels[np.asarray(members, dtype=np.int64)] = label
    return labels


def homogeneity_of(
    histograms: Floats, measure: Measure = "l2", *, pooled: Floats | None = None, losses: Floats | None = None
) -> Floats:
    """How even every client's data are; larger is more homogeneous.

    "l2": 1 − ‖q − q_pooled‖₂/√2; "mu21": 2 − ‖q − uniform‖₂ (Li et al., 2021); "entropy": entropy of the labels
    over its largest value; "nll": exp(−loss) of the global model, 0 where the loss is missing.
    """
    histograms = np.asarray(histograms, dtype=np.float64)
    classes = histograms.shape[1]
    match measure:
        case "l2":
            middle = histograms.sum(axis=0) if pooled is None else pooled
            return np.asarray(1 - euclidean(histograms, middle) / np.sqrt(2))
        case "mu21":
            return np.asarray(2 - euclidean(histograms, np.ones(classes)))
        case "entropy":
            return np.asarray(entropies(histograms) / np.log(classes) if classes > 1 else np.ones(len(histograms)))
        case "nll":
            if losses is None:
                raise ConfigError("the homogeneity 'nll' is computed from losses", fix="pass losses=…")
            return np.nan_to_num(np.exp(-losses), nan=0.0)


def ranked(scores: Floats, losses: Floats) -> Ints:
    """Positions by descending score; without a score last; ties by descending loss, then by position."""
    first = np.where(np.isfinite(scores), -scores, np.inf)
    second = np.where(np.isfinite(losses), -losses, np.inf)
    return np.lexsort((np.arange(len(scores)), second, first))
