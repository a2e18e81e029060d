"""A federation's heterogeneity in numbers, before any training: what `muster inspect` shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform
from scipy.special import xlogy
from scipy.stats import chi2, poisson

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.core.inequality import gini
from muster.core.randomness import generator
from muster.data.federated import FederatedData
from muster.heterogeneity.advice import SURE, Advice, FederationFacts, Recommendation, advise, concentrated
from muster.heterogeneity.divergences import earth_mover, hellinger, js_divergence, pairwise, to_pooled
from muster.heterogeneity.metrics import effective_clients, summary, triplets
from muster.heterogeneity.tables import Counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Clients in the heat map; of more, this many are drawn.
MAX_COMPARED = 200
MAX_UNUSUAL = 5


@dataclass(frozen=True)
class Unusual:
    """A client whose data differ from all data together."""

    client: int
    size: float
    #: Jensen–Shannon divergence of its groups from those of all data, in bits.
    divergence: float
    #: The group that it has too much of, its share there, and the share in all data.
    group: tuple[int, int]
    share: float
    pooled_share: float


@dataclass(frozen=True)
class Spread:
    """Mean and largest value over clients."""

    mean: float
    largest: float


@dataclass(frozen=True)
class Inspection:
    """Everything that is known about a federation from its counts."""

    counts: Counts
    #: GCI GAI GSC CCI CAI CSC; without attributes only GCI and CCI.
    metrics: dict[str, float]
    #: (CI, AI, SC) of every client.
    triplets: Floats
    #: Of clients' labels from those of all data, by name of the distance.
    divergences: dict[str, Spread]
    #: The mean Jensen–Shannon divergence, in bits, that clients of these sizes would have by chance alone.
    chance: float
    size_gini: float
    effective_clients: float
    unusual: list[Unusual]
    advice: list[Advice]
    #: Clients that take part in a round.
    cohort: int
    #: Whether cohorts can differ at all.
    choice: bool
    #: What was tried on federations like this one; None where that was not looked up.
    recommendation: Recommendation | None = None

    @property
    def clients(self) -> int:
        return len(self.counts.table)

    def plot(self, kind: str = "kinds") -> Figure:
        """A picture: "kinds" (which skew each client has), "divergence" (between clients), or "sizes"."""
        figure: Figure = import_module("muster.report.inspection").draw_inspection(self, kind)
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows: numbers and advice."""
        shown: str = import_module("muster.report.inspection").inspection_html(self)
        return shown


def inspect(counts: Counts | FederatedData, cohort: int | None = None) -> Inspection:
    """Look at a table of counts, or at the data of a federation: only who has how much of what is used.

    `cohort`: clients that take part in a round (default: a tenth).
    """
    counts = Counts.of(counts) if isinstance(counts, FederatedData) else counts
    table, histograms, sizes = counts.table, counts.histograms, counts.sizes
    six, apart = summary(table), triplets(table)
    flat = table.reshape(len(table), -1)
    if cohort is not None and not 1 <= cohort <= len(table):
        raise ConfigError(f"a cohort of {cohort} clients", expected=f"1 to {len(table)}")
    cohort = cohort or max(1, len(table) // 10)
    if not counts.has_attributes:
        six = {name: six[name] for name in ("GCI", "CCI")}
    divergences = {
        "Jensen–Shannon (bits)": _spread(to_pooled(histograms) / np.log(2)),
        "Hellinger": _spread(to_pooled(histograms, hellinger)),
        "earth mover's": _spread(to_pooled(histograms, earth_mover)),
    }
    facts = FederationFacts(
        metrics=six,
        triplets=apart,
        sizes=sizes,
        holders=np.count_nonzero(histograms, axis=0),
        cohort=cohort,
        divergence=divergences["Jensen–Shannon (bits)"].mean,
        chance=chance_divergence(sizes, histograms.sum(axis=0)),
        class_names=[counts.class_name(label) for label in range(table.shape[1])],
        group_divergence=float(to_pooled(flat).mean() / np.log(2)),
        group_chance=chance_divergence(sizes, flat.sum(axis=0)),
        pooled=table.sum(axis=0).astype(np.float64) if counts.has_attributes else None,
        group_name=counts.group_name,
        concentrated=concentrated(flat, cohort),
    )
    return Inspection(
        counts=counts,
        metrics=six,
        triplets=apart,
        divergences=divergences,
        chance=facts.chance,
        size_gini=gini(sizes),
        effective_clients=effective_clients(sizes),
        unusual=most_unusual(counts),
        advice=advise(facts),
        cohort=facts.cohort,
        choice=facts.choice,
    )


def most_unusual(counts: Counts, most: int = MAX_UNUSUAL) -> list[Unusual]:
    """The clients whose groups (classes, without attributes) differ most from all data, the most unusual first.

    Only those that chance would not make unusual: no mix of a handful of samples is. By chance, divergences are
    distributed about as χ² with one degree of freedom less than there are groups, scaled to the right mean; where
    groups are many and samples few, they are closer to it, and clients are named more seldom than might be.
    """
    flat = counts.table.reshape(len(counts.table), -1)
    divergence = to_pooled(flat) / np.log(2)
    groups = int(np.count_nonzero(flat.sum(axis=0)))
    by_chance = chance_divergences(counts.sizes, flat.sum(axis=0))
    freedom = max(1, groups - 1)
    chance = chi2.sf(freedom * divergence / np.where(by_chance > 0, by_chance, np.inf), freedom)
    pooled = flat.sum(axis=0) / flat.sum()
    found = []
    order = np.argsort(by_chance - divergence, kind="stable")
    for client in order[chance[order] <= SURE / len(flat)][:most].tolist():
        own = flat[client] / flat[client].sum()
        cell = int(np.argmax(own - pooled))
        label, attribute = divmod(cell, counts.table.shape[2])
        size = float(flat[client].sum())
        found.append(
            Unusual(
                client, size, float(divergence[client]), (label, attribute), float(own[cell]), float(pooled[cell])
            )
        )
    return found


def chance_divergence(sizes: Floats, pooled: Floats) -> float:
    """Mean divergence (Jensen–Shannon, bits) of random samples of these sizes from what they are drawn from."""
    return float(chance_divergences(sizes, pooled).mean())


def chance_divergences(sizes: Floats, pooled: Floats) -> Floats:
    """The same for each size; `pooled`: the counts of all data.

    To first order (classes − 1)/(8n) nats, which is much too large where clients have fewer samples than there are
    classes: so class by class, as if counts were Poisson's.
    """
    share = np.asarray(pooled, dtype=np.float64)[np.asarray(pooled) > 0] / np.sum(pooled)
    distinct, place = np.unique(np.asarray(sizes, dtype=np.float64), return_inverse=True)
    nats = np.array([np.sum(share * (1 - share) * _of_expected_counts(size * share)) for size in distinct])
    return np.asarray(nats[place] / np.log(2))


def _of_expected_counts(expected: Floats) -> Floats:
    """What a class adds to the divergence by chance if so many samples are expected of it: nats per share."""
    known, values = _divergence_of_counts()
    return np.exp(np.interp(np.log(expected), known, values))


@lru_cache(maxsize=1)
def _divergence_of_counts() -> tuple[Floats, Floats]:
    """Logarithms of expected counts and of what they add: the sum over counts, 1/(8 · expected) for many."""
    expected, counts = np.logspace(-4, 2, 200), np.arange(300)
    ratio = counts / expected[:, None]
    apart = (xlogy(ratio, 2 * ratio / (1 + ratio)) + np.log(2 / (1 + ratio))) / 2
    added = (poisson.pmf(counts, expected[:, None]) * apart).sum(axis=1)
    many = 1e12
    return np.log(np.append(expected, many)), np.log(np.append(added, 1 / (8 * many)))


def compared(counts: Counts, most: int = MAX_COMPARED) -> tuple[Ints, Floats]:
    """Clients, neighbours alike, and the divergences (Jensen–Shannon, bits) between the labels of every two.

    Of more than `most` clients, `most` are drawn (always the same). The order is that of the leaves of an
    average-linkage tree.
    """
    clients = np.arange(len(counts.table))
    if len(clients) > most:
        clients = np.sort(generator(0, "inspect").choice(clients, most, replace=False))
    matrix = pairwise(counts.histograms[clients], js_divergence) / np.log(2)
    if len(clients) > 2:
        tree = linkage(squareform(np.sqrt(matrix), checks=False), "average", optimal_ordering=True)
        order = leaves_list(tree)
        return clients[order], matrix[np.ix_(order, order)]
    return clients, matrix


def _spread(values: Floats) -> Spread:
    return Spread(float(values.mean()), float(values.max()))
