"""A random number of classes for each client, so that narrow and broad clients are mixed.

After the sampled sharder of De Cesare, Cappellino and Bevilacqua, "Federated learning beyond uniform
participation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Index
from muster.data.partition._filling import deal, fill_in_order
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition._rounding import check_alpha, even, largest_remainder
from muster.data.partition.base import Partition, Scheme, check_clients, schemes

Sampler = Literal["uniform", "poisson"]
Allocation = Literal["equal", "dirichlet", "random"]


def sampled_shards(
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    min_classes: int = 1,
    max_classes: int = 50,
    sampler: Sampler = "uniform",
    rate: float = 5.0,
    allocation: Allocation = "equal",
    alpha: float = 1.0,
) -> Index:
    """Nearly equal clients, visited in random order; each chooses a number of classes and fills itself from them.

    The number is uniform between `min_classes` and `max_classes`, or 1 + Poisson(rate) within these limits; the
    classes are chosen uniformly among those with samples left. What a chosen class cannot give comes from the
    classes with the most samples left, so late clients may have more classes. Every sample is assigned once.
    """
    pools = shuffled_pools(labels, classes, rng)
    targets = even(len(labels), clients)

    def propose(present: Ints, needs: Ints) -> tuple[Ints, Floats]:
        rows, columns = len(needs), len(present)
        if sampler == "poisson":
            wanted = np.clip(1 + rng.poisson(rate, size=rows), min_classes, max_classes)
        else:
            wanted = rng.integers(
                min_classes, max(min_classes, min(max_classes, classes)), size=rows, endpoint=True
            )
        wanted = np.minimum(wanted, columns)
        order = rng.permuted(np.tile(np.arange(columns), (rows, 1)), axis=1)
        chosen = order < wanted[:, None]
        width = wanted[:, None]
        if allocation == "equal":
            counts = np.where(chosen, needs[:, None] // width + (order < needs[:, None] % width), 0)
        elif allocation == "random":
            counts = rng.multinomial(needs, chosen / width)
        else:
            counts = largest_remainder(_gammas(chosen, order, alpha, rng), needs)
        return counts, chosen.astype(np.float64)

    visit = rng.permutation(clients)
    counts = np.empty((clients, classes), dtype=np.int32)
    counts[visit] = fill_in_order(pools.sizes, targets[visit], propose, from_fullest)
    return deal(pools, counts)


def _gammas(chosen: Bools, order: Ints, alpha: float, rng: np.random.Generator) -> Floats:
    """Dirichlet weights over the chosen classes, not normalised. Where all underflow, the first class has them."""
    if np.isinf(alpha):
        return chosen.astype(np.float64)
    weights = np.where(chosen, rng.standard_gamma(alpha, size=chosen.shape), 0.0)
    return np.where(weights.any(axis=1, keepdims=True), weights, order == 0)


def from_fullest(need: int, weights: Floats, stock: Ints) -> Ints:
    """`need` samples from the classes with the most left, the fullest first (of equals the first class)."""
    order = np.argsort(-stock, kind="stable")
    before = np.cumsum(stock[order]) - stock[order]
    taken = np.zeros(len(stock), dtype=np.int64)
    taken[order] = np.clip(need - before, 0, stock[order])
    return taken


@schemes.register("sampled-shards")
@dataclass(frozen=True)
class SampledShards(Scheme):
    """A random number of classes for each client: narrow and broad clients of equal size.

    Clients have the same share of each class's test samples as of its training samples.
    """

    needs_classes: ClassVar[bool] = True

    clients: int
    min_classes: int = 1
    max_classes: int = 50
    sampler: Sampler = "uniform"
    rate: float = 5.0
    allocation: Allocation = "equal"
    alpha: float = 1.0

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        check_clients(self.clients, len(dataset.train))
        check_alpha(self.alpha)
        if not 1 <= self.min_classes <= min(self.max_classes, dataset.classes):
            raise ConfigError(
                f"partition.min_classes = {self.min_classes} with partition.max_classes = {self.max_classes}",
                expected=f"1 ≤ min_classes ≤ max_classes, and min_classes ≤ {dataset.classes}, the data's classes",
            )
        if self.rate < 0:
            raise ConfigError(f"bad value for 'partition.rate': {self.rate}", expected="at least 0")
        train = sampled_shards(
            dataset.train.labels,
            dataset.classes,
            self.clients,
            rng,
            min_classes=self.min_classes,
            max_classes=self.max_classes,
            sampler=self.sampler,
            rate=self.rate,
            allocation=self.allocation,
            alpha=self.alpha,
        )
        return Partition(train, matching_test(train, dataset, rng))
