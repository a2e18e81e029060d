"""Diversity score: clients with many, even and unusual labels are drawn more often.

De Cesare, Cappellino, Bevilacqua: Probing and diversity-aware client selection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import entr

from muster.core.arrays import Floats
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.heterogeneity.divergences import js_distance, shares
from muster.selection._mean_js import mean_js
from muster.selection._memory import ask_histograms, told
from muster.selection._ranking import highest
from muster.selection._scaling import min_max
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal
from muster.signals.labels import LabelHistogram

#: Beyond this many clients, mean JS distances are estimated from REF_SAMPLE of them. Distances lie between 0 and
#: √log 2, so the standard error of an estimate is at most √log 2 / (2·√REF_SAMPLE) ≈ 0.019.
REF_EXACT, REF_SAMPLE = 2000, 500
#: Clients per block of distances: a block of 100 classes stays below a few megabytes.
_BLOCK = 2048


@selectors.register("diversity-score")
@dataclass
class DiversityScore(Selector):
    """Static probabilities that favour clients with many, evenly spread and unusual labels."""

    clients_per_round: int
    #: Weight of the client's own diversity against its distance from the others.
    alpha: float = 0.5
    #: λ: weight of the number of classes against the entropy.
    lam: float = 0.5
    #: "divergence": mean divergence from the others; "ref": the released code's scaled mean distance.
    js: Literal["divergence", "ref"] = "divergence"
    unit: Literal["bits", "nats"] = "bits"
    #: Added to the scaled scores so that no client has probability zero.
    epsilon: float = 0.01
    #: "sample": draw with these probabilities; "top": always the highest scores, hence always the same clients.
    pick: Literal["sample", "top"] = "sample"

    histograms: Floats = state(lambda: np.zeros((0, 0)))
    #: Scaled scores plus ε; ε where the labels are not known.
    weights: Floats = state(lambda: np.zeros(0))
    scored: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        for name, value in {"alpha": self.alpha, "lam": self.lam}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"DiversityScore: {name} is {value}", expected="0 to 1")
        if not 0 < self.epsilon < np.inf:
            raise ConfigError(f"DiversityScore: epsilon is {self.epsilon}", expected="a positive number")

    def cautions(self, population: Population) -> list[str]:
        if self.pick == "top" and self.clients_per_round < population.clients:
            return [
                f"diversity-score with pick = 'top' always trains the same {self.clients_per_round} clients, as "
                "long as they are available"
            ]
        if self.alpha == 1:
            return [
                "diversity-score does not look at how clients differ here: with alpha = 1 only their own "
                "diversity counts"
            ]
        if self.alpha == 0:
            return [
                "diversity-score does not look at clients' own diversity here: with alpha = 0 only how much they "
                "differ counts"
            ]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (LabelHistogram(),)

    def round(self, fed: View) -> Plan:
        self.histograms = yield from ask_histograms(LabelHistogram(), self.histograms, fed)
        self._score(fed)
        if self.pick == "top":
            top = highest(self.weights[fed.available], self.clients_per_round, fed.rng)
            yield Train(fed.available[top])
        else:
            yield Train(fed.weighted_sample(self.clients_per_round, self.weights[fed.available]))

    def _score(self, fed: View) -> None:
        """Scores of all clients whose labels are known, again only when more have become known."""
        self.weights = grown(self.weights, fed.clients, self.epsilon)
        known = np.flatnonzero(told(self.histograms))
        if len(known) == self.scored:
            return
        values = scores(self.histograms[known], self.alpha, self.lam, js=self.js, unit=self.unit, rng=fed.rng)
        self.weights[known] = min_max(values) + self.epsilon
        self.scored = len(known)


def scores(
    histograms: Floats,
    alpha: float = 0.5,
    lam: float = 0.5,
    *,
    js: Literal["divergence", "ref"] = "divergence",
    unit: Literal["bits", "nats"] = "bits",
    rng: np.random.Generator | None = None,
) -> Floats:
    """α · own diversity + (1 − α) · distance from the others, for every row of label counts.

    `rng` chooses the clients that "ref" compares with when there are more than REF_EXACT.
    """
    distribution = shares(histograms)
    if js == "ref":
        distance = mean_distances(distribution, rng)
        largest = distance.max(initial=0.0)
        distance = distance / largest if largest > 0 else distance
    else:
        distance = mean_js(distribution) / (np.log(2) if unit == "bits" else 1.0)
    return np.asarray(alpha * own_diversity(distribution, lam) + (1 - alpha) * distance)


def own_diversity(distribution: Floats, lam: float = 0.5) -> Floats:
    """λ · share of the classes that a client has + (1 − λ) · entropy over its largest value."""
    classes = distribution.shape[1]
    entropy = entr(distribution).sum(axis=1) / (np.log(classes) if classes > 1 else 1.0)
    return np.asarray(lam * (distribution > 0).mean(axis=1) + (1 - lam) * entropy)


def mean_distances(distribution: Floats, rng: np.random.Generator | None = None) -> Floats:
    """For every row the mean Jensen–Shannon distance (√nats) to all rows, itself included.

    A square root does not separate into classes: beyond REF_EXACT rows the mean is over REF_SAMPLE of them.
    """
    others = distribution
    if len(distribution) > REF_EXACT:
        if rng is None:
            raise ConfigError(
                f"mean distances of more than {REF_EXACT} clients are estimated from a sample", fix="pass rng=…"
            )
        others = distribution[rng.choice(len(distribution), size=REF_SAMPLE, replace=False)]
    total = np.zeros(len(distribution))
    for other in others:
        for start in range(0, len(distribution), _BLOCK):
            block = slice(start, start + _BLOCK)
            total[block] += js_distance(distribution[block], other)
    return total / len(others)
