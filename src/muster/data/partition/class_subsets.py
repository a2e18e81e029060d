"""Clients that know some of the classes, some clients more of them and with more samples than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.errors import ConfigError, DataError
from muster.data.federated import Dataset, Index
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition.base import Partition, Scheme, check_clients, schemes
from muster.data.partition.classes_per_client import mix_class_sets
from muster.data.partition.quantity_skew import size_weights, skewed_sizes


def varied_class_sets(numbers: Ints, classes: int, rng: np.random.Generator) -> Bools:
    """clients × classes: who holds what. Client k has numbers[k] classes; all have as many holders, ± 1."""
    holds = np.zeros((len(numbers), classes), dtype=np.bool_)
    # Classes in random order, dealt round and round: no client gets one twice, as none gets more than there are.
    order = rng.permutation(classes)
    slots = np.arange(numbers.sum())
    holds[np.repeat(np.arange(len(numbers)), numbers), order[slots % classes]] = True
    mix_class_sets(holds, rng)
    return holds


def class_subsets(labels: Ints, classes: int, numbers: Ints, weights: Floats, rng: np.random.Generator) -> Index:
    """Client k holds numbers[k] classes; of each it has one sample, and of the rest a share ∝ weights[k].

    Classes without samples take no part. With fewer slots than classes some classes stay unassigned.
    """
    pools = shuffled_pools(labels, classes, rng)
    present = np.flatnonzero(pools.sizes)
    holds = varied_class_sets(numbers, len(present), rng)
    owners = np.full(len(labels), -1, dtype=np.int64)
    for column, c in enumerate(present.tolist()):
        holders = np.flatnonzero(holds[:, column])
        if len(holders) > len(pools[c]):
            raise DataError(
                f"class {c} has {len(pools[c])} samples, but {len(holders)} clients are to have some of it",
                fix="use fewer clients or fewer classes per client",
            )
        if len(holders):
            owners[pools[c]] = np.repeat(holders, skewed_sizes(len(pools[c]), weights[holders], 1))
    return Index.from_owners(owners, len(numbers))


@schemes.register("class-subsets")
@dataclass(frozen=True)
class ClassSubsets(Scheme):
    """A subset of the classes for each client, of varying size, and varying numbers of samples.

    How many classes a client has is uniform from min_classes to max_classes; its share of a class among those that
    hold it is proportional to the client's weight, log-normal with σ = spread (0: equal shares). Clients have the
    same share of each class's test samples as of its training samples.
    """

    needs_classes: ClassVar[bool] = True

    clients: int
    min_classes: int = 2
    max_classes: int = 5
    spread: float = 0.5

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        labels = dataset.train.labels
        check_clients(self.clients, len(labels))
        present = int(np.count_nonzero(np.bincount(labels, minlength=dataset.classes)))
        self._check(present)
        numbers = rng.integers(self.min_classes, self.max_classes, size=self.clients, endpoint=True)
        weights = size_weights("lognormal", self.clients, self.spread, rng)
        train = class_subsets(labels, dataset.classes, numbers, weights, rng)
        return Partition(train, matching_test(train, dataset, rng))

    def _check(self, present: int) -> None:
        if not 1 <= self.min_classes <= self.max_classes <= present:
            raise ConfigError(
                f"bad partition.min_classes and max_classes: {self.min_classes} and {self.max_classes}",
                expected=f"1 ≤ min_classes ≤ max_classes ≤ {present}, the number of classes in the training data",
            )
        if not 0 <= self.spread < np.inf:
            raise ConfigError(
                f"bad value for 'partition.spread': {self.spread}", expected="zero or a positive number"
            )
