"""The samples of each class, and the test samples that match what clients have for training."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Ints
from muster.data.federated import Dataset, Index


def class_pools(labels: Ints, classes: int) -> Index:
    """The positions of each class, in file order (row c: class c), in O(samples)."""
    narrow = labels.astype(np.min_scalar_type(max(classes - 1, 0)))  # 8 and 16 bits are sorted by radix
    order = np.argsort(narrow, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=classes))]).astype(np.int64)
    return Index(starts, order)


def shuffled_pools(labels: Ints, classes: int, rng: np.random.Generator) -> Index:
    """The positions of each class, in random order."""
    pools = class_pools(labels, classes)
    samples = pools.samples.copy()
    for c in range(classes):
        rng.shuffle(samples[pools.starts[c] : pools.starts[c + 1]])
    return Index(pools.starts, samples)


def matching_test(train: Index, dataset: Dataset, rng: np.random.Generator) -> Index | None:
    """Give every client the same share of each class's test samples as it has of the training samples.

    A client's exact share is rounded up or down (at random, so that small shares do not always vanish). Test
    samples of classes, or parts of classes, that no client trains on stay unassigned. None without a test split.
    """
    if len(dataset.test) == 0:
        return None
    return matching_shares(train, dataset.train.labels, dataset.test.labels, dataset.classes, rng)


def matching_shares(
    train: Index, train_cells: Ints, test_cells: Ints, cells: int, rng: np.random.Generator
) -> Index:
    """The division of `test_cells` (class or group of every test sample) that matches `train`, cell by cell."""
    available = np.bincount(train_cells, minlength=cells)
    held = class_pools(train_cells[train.samples], cells)
    holders = train.owners[held.samples]
    pools = shuffled_pools(test_cells, cells, rng)
    owners = np.full(len(test_cells), -1, dtype=np.int64)
    for cell in range(cells):
        pool = pools[cell]
        if len(pool) == 0 or available[cell] == 0:
            continue
        counts = np.bincount(holders[held.starts[cell] : held.starts[cell + 1]], minlength=train.clients)
        # Whole-number arithmetic: cut points ⌊(Σ counts · pool + u) / available⌋ with u below `available`.
        points = (np.cumsum(counts) * len(pool) + rng.integers(available[cell])) // available[cell]
        points = np.minimum(points, len(pool))
        mine = np.repeat(np.arange(train.clients), np.diff(points, prepend=0))
        owners[pool[: len(mine)]] = mine
    return Index.from_owners(owners, train.clients)
