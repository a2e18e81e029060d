"""Clients with a fixed number of classes, N_c: the split of McMahan et al. (2017) and its relatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Bools, Ints
from muster.core.errors import ConfigError, DataError
from muster.data.federated import Dataset, Index
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition._rounding import even
from muster.data.partition.base import Partition, Scheme, check_clients, schemes
from muster.data.partition.sampled_shards import sampled_shards


def random_class_sets(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> Bools:
    """clients × classes: who holds what. Rows sum to `per_client`, columns differ by at most one.

    Starts from a valid table (classes dealt in turn) and mixes it by trades: random pairs of clients shuffle the
    classes that only one of them has, which keeps all sums (the curveball chain of Strona et al., 2014).
    """
    slots = clients * per_client
    times = np.full(classes, slots // classes, dtype=np.int64)
    times[rng.permutation(classes)[: slots % classes]] += 1
    order = rng.permutation(classes)
    holds = np.zeros((clients, classes), dtype=np.bool_)
    # A class fills consecutive slots, at most one round of clients, so no client gets it twice.
    holds[np.arange(slots) % clients, np.repeat(order, times[order])] = True
    mix_class_sets(holds, rng)
    return holds


def mix_class_sets(holds: Bools, rng: np.random.Generator) -> None:
    """Mix a table of who holds what, in place, so that all sums of rows and columns stay."""
    clients = len(holds)
    for _ in range(clients.bit_length() + 8 if clients > 1 else 0):
        pairs = rng.permutation(clients)
        _trade(holds, pairs[: clients // 2], pairs[clients // 2 : 2 * (clients // 2)], rng)


def _trade(holds: Bools, left: Ints, right: Ints, rng: np.random.Generator) -> None:
    """Each pair redistributes, at random and in the same numbers, what only one of the two has."""
    ours, theirs = holds[left], holds[right]
    single = ours ^ theirs
    open_slots = (ours & single).sum(axis=1)
    candidates = single.sum(axis=1)
    for c in range(holds.shape[1]):  # selection sampling: each candidate in turn with the exact conditional chance
        column = single[:, c]
        gets = column & (rng.random(len(left)) * candidates < open_slots)
        ours[column, c] = gets[column]
        theirs[column, c] = ~gets[column]
        open_slots -= gets
        candidates -= column
    holds[left], holds[right] = ours, theirs


def classes_per_client(
    labels: Ints, classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> Index:
    """Every client has exactly `per_client` classes; a class's samples are divided evenly over its holders.

    Classes without samples take no part. With fewer slots than classes some classes stay unassigned.
    """
    pools = shuffled_pools(labels, classes, rng)
    present = np.flatnonzero(pools.sizes)
    holds = random_class_sets(clients, len(present), per_client, rng)
    owners = np.full(len(labels), -1, dtype=np.int64)
    for column, c in enumerate(present.tolist()):
        holders = rng.permutation(np.flatnonzero(holds[:, column]))
        if len(holders) > len(pools[c]):
            raise DataError(
                f"class {c} has {len(pools[c])} samples, but {len(holders)} clients are to have some of it",
                fix="use fewer clients or fewer classes per client",
            )
        if len(holders):
            owners[pools[c]] = np.repeat(holders, even(len(pools[c]), len(holders)))
    return Index.from_owners(owners, clients)


def label_shards(labels: Ints, classes: int, clients: int, per_client: int, rng: np.random.Generator) -> Index:
    """Samples sorted by label, cut into clients · per_client nearly equal shards, dealt out in equal numbers."""
    pools = shuffled_pools(labels, classes, rng)
    shards = clients * per_client
    holders = rng.permutation(np.arange(shards) % clients)
    owners = np.empty(len(labels), dtype=np.int64)
    owners[pools.samples] = np.repeat(holders, even(len(labels), shards))
    return Index.from_owners(owners, clients)


def truncated(index: Index, rng: np.random.Generator) -> Index:
    """Every client with as many samples as the smallest one has, chosen at random; the others stay unassigned."""
    order = rng.permutation(len(index.samples))
    order = order[np.argsort(index.owners[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(index.starts[:-1], index.sizes)
    kept = np.sort(order[rank < index.sizes.min()])
    starts = np.arange(index.clients + 1, dtype=np.int64) * index.sizes.min()
    return Index(starts, index.samples[kept])


@schemes.register("classes-per-client")
@dataclass(frozen=True)
class ClassesPerClient(Scheme):
    """A fixed number of classes for each client (N_c).

    mode = "exact": N_c different classes each, a class divided evenly over its holders. "shards": N_c shards of
    the sorted samples each, as McMahan et al. (2017). "sampled": N_c or N_c + 1 classes by the scheme
    `sampled-shards`. Clients have the same share of each class's test samples as of its training samples.
    """

    needs_classes: ClassVar[bool] = True

    clients: int
    classes: int = 2
    mode: Literal["exact", "shards", "sampled"] = "exact"
    allow_missing: bool = False
    equal_size: bool = False

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        labels = dataset.train.labels
        check_clients(self.clients, len(labels))
        present = int(np.count_nonzero(np.bincount(labels, minlength=dataset.classes)))
        self._check(present, len(labels))
        if self.mode == "sampled":
            train = sampled_shards(
                labels,
                dataset.classes,
                self.clients,
                rng,
                min_classes=self.classes,
                max_classes=self.classes + 1,
            )
        else:
            divide = classes_per_client if self.mode == "exact" else label_shards
            train = divide(labels, dataset.classes, self.clients, self.classes, rng)
        if self.equal_size:
            train = truncated(train, rng)
        return Partition(train, matching_test(train, dataset, rng))

    def _check(self, present: int, samples: int) -> None:
        if not 1 <= self.classes <= present:
            raise ConfigError(
                f"bad value for 'partition.classes': {self.classes}",
                expected=f"between 1 and {present}, the number of classes in the training data",
            )
        slots = self.clients * self.classes
        if self.mode == "exact" and slots < present and not self.allow_missing:
            raise ConfigError(
                f"{self.clients} clients with {self.classes} classes each cannot cover {present} classes",
                fix="use more clients or classes, or set partition.allow_missing = true",
            )
        if self.mode == "shards" and slots > samples:
            raise ConfigError(
                f"{samples} samples cannot be cut into {slots} shards", fix="use fewer clients or classes"
            )
