"""Independent and identically distributed clients: a random permutation in nearly equal parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.data.federated import Dataset, Index
from muster.data.partition._rounding import even
from muster.data.partition.base import Partition, Scheme, check_clients, schemes


def iid(samples: int, clients: int, rng: np.random.Generator) -> Index:
    """`samples` in random order, cut into nearly equal parts (the first ones larger by one)."""
    owners = np.repeat(np.arange(clients), even(samples, clients))
    rng.shuffle(owners)
    return Index.from_owners(owners, clients)


@schemes.register("iid")
@dataclass(frozen=True)
class IID(Scheme):
    """Equal clients: a random permutation of the samples, cut into nearly equal parts.

    The test split is divided in the same way, independently.
    """

    clients: int

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        check_clients(self.clients, len(dataset.train))
        train = iid(len(dataset.train), self.clients, rng)
        return Partition(train, iid(len(dataset.test), self.clients, rng) if len(dataset.test) else None)
