"""Clients of one exact size whose label distributions are drawn with one Dirichlet parameter per group.

The workloads of ASTraFL (Xie et al.): 12 clients, 2,000 CIFAR-10 samples each, β from 0.1 to 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Index
from muster.data.partition._filling import deal
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition._rounding import bounded_tries, check_alpha, largest_remainder
from muster.data.partition.base import Partition, Scheme, check_clients, schemes


def fixed_size_dirichlet(
    labels: Ints,
    classes: int,
    betas: Floats,
    size: int,
    rng: np.random.Generator,
    *,
    max_tries: int = 1000,
) -> Index:
    """One client for each entry of `betas`, with exactly `size` samples and labels ~ Dir(β, …, β).

    Clients are disjoint; what no client needs stays unassigned. All distributions are drawn again while together
    they ask for more of a class than there is. When that does not end within `max_tries`, the last draw is
    capped: the class is shared in proportion, and clients take the difference from their other classes.
    """
    pools = shuffled_pools(labels, classes, rng)
    for _ in range(bounded_tries(max_tries, len(betas) * classes)):
        mixtures = _mixtures(betas, pools.sizes > 0, rng)
        counts = largest_remainder(mixtures, np.full(len(betas), size))
        if (counts.sum(axis=0) <= pools.sizes).all():
            return deal(pools, counts)
    return deal(pools, capped(counts, mixtures, pools.sizes))


def _mixtures(
    betas: Floats, present: np.ndarray[tuple[int], np.dtype[np.bool_]], rng: np.random.Generator
) -> Floats:
    """A label distribution for each client, over the classes that have samples."""
    mixtures = np.zeros((len(betas), len(present)))
    for beta in np.unique(betas):
        rows = np.flatnonzero(betas == beta)
        width = int(present.sum())
        drawn = np.full((len(rows), width), 1.0) if np.isinf(beta) else rng.dirichlet([beta] * width, len(rows))
        mixtures[np.ix_(rows, np.flatnonzero(present))] = drawn / drawn.sum(axis=1, keepdims=True)
    return mixtures


def capped(counts: Ints, mixtures: Floats, stock: Ints) -> Ints:
    """`counts` (clients × classes) changed so that no class is asked for more than `stock`; row sums stay.

    A class that is over-subscribed is shared in proportion to demand. A client takes what it lost from classes
    with samples left, ∝ its own distribution (equally, where that has no mass on them).
    """
    counts = counts.copy()
    wanted = counts.sum(axis=1)
    for c in np.flatnonzero(counts.sum(axis=0) > stock):
        counts[:, c] = largest_remainder(counts[:, c].astype(np.float64), int(stock[c]))
    left = stock - counts.sum(axis=0)
    for k in np.flatnonzero(counts.sum(axis=1) < wanted):
        while need := int(wanted[k] - counts[k].sum()):
            weights = np.where(left > 0, mixtures[k], 0.0)
            share = largest_remainder(weights if weights.any() else (left > 0).astype(np.float64), need)
            got = np.minimum(share, left)
            counts[k] += got
            left -= got
    return counts


@schemes.register("fixed-size-dirichlet")
@dataclass(frozen=True)
class FixedSizeDirichlet(Scheme):
    """Clients of one exact size; groups of them with their own Dirichlet parameter beta.

    Clients are numbered group by group. `group_sizes` says how many each beta has (default: equally many).
    Clients have the same share of each class's test samples as of its training samples; the rest of both splits
    stays unassigned.
    """

    needs_classes: ClassVar[bool] = True

    clients: int = 12
    betas: tuple[float, ...] = (0.5,)
    group_sizes: tuple[int, ...] | None = None
    size: int = 2000
    max_tries: int = 1000

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        check_clients(self.clients, len(dataset.train))
        betas = np.repeat(self.betas, self._groups())
        needed = self.clients * self.size
        if self.size < 1 or needed > len(dataset.train):
            raise ConfigError(
                f"{self.clients} clients with {self.size} samples each need {needed} samples; "
                f"there are {len(dataset.train)}",
                expected="at least 1 sample per client, and not more than there are in all",
                fix="lower partition.size or partition.clients",
            )
        train = fixed_size_dirichlet(
            dataset.train.labels, dataset.classes, betas, self.size, rng, max_tries=self.max_tries
        )
        return Partition(train, matching_test(train, dataset, rng))

    def _groups(self) -> list[int]:
        if not self.betas:
            raise ConfigError("bad value for 'partition.betas': ()", expected="at least one beta")
        for beta in self.betas:
            check_alpha(beta, "partition.betas")
        groups = self.group_sizes or (self.clients // len(self.betas),) * len(self.betas)
        if len(groups) != len(self.betas) or sum(groups) != self.clients or min(groups) < 0:
            raise ConfigError(
                f"groups of {', '.join(map(str, groups))} clients do not fit {len(self.betas)} betas and "
                f"{self.clients} clients",
                expected="one group size a beta, summing to partition.clients",
                fix="set partition.group_sizes",
            )
        return list(groups)
