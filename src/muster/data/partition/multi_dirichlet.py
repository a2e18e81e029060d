"""Groups of clients with different label skew: one Dirichlet parameter per group (Chen and Vikalo, "Heterogeneity-
guided client sampling", 2024; also the scenarios of Terraform, Balivada et al.)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError
from muster.data.federated import Dataset, Index
from muster.data.partition._pools import class_pools
from muster.data.partition._rounding import (
    OnDegenerate,
    bounded_tries,
    check_alpha,
    cut,
    shares_with_room,
)
from muster.data.partition.base import Partition, Scheme, check_clients, schemes


def multi_dirichlet(
    train_labels: Ints,
    test_labels: Ints,
    classes: int,
    alphas: tuple[float, ...],
    rng: np.random.Generator,
    *,
    clients: int,
    min_share: float = 0.2,
    on_degenerate: OnDegenerate = "redraw",
    max_tries: int = 10_000,
) -> tuple[Index, Index]:
    """Training and test samples of `clients // len(alphas)` clients for each alpha, in the order of the alphas.

    Group i has the i-th slice, in file order, of every class. Within it a class is cut over the clients by one
    Dirichlet draw, used for training and test; clients that already have their equal share (of training, of
    test) get no more. A group is drawn again until each of its clients has `min_share` of an equal share. What
    the slices leave over (class sizes that the number of groups does not divide) stays unassigned.
    """
    groups, members = len(alphas), clients // len(alphas)
    tables = []
    splits = []
    for labels, shuffle in ((train_labels, True), (test_labels, False)):
        pools = class_pools(labels, classes)
        splits.append((pools, shuffle, np.full(len(labels), -1, dtype=np.int64)))
        tables.append(_Slices(pools.sizes // groups, len(labels) // groups, members, min_share, int(shuffle)))
    for group, alpha in enumerate(alphas):
        counts = _group(tables, alpha, rng, on_degenerate, max_tries)
        for (pools, shuffle, owners), table, mine in zip(splits, tables, counts, strict=True):
            for c, width in enumerate(table.widths.tolist()):
                pool = pools[c][group * width : (group + 1) * width]
                ids = np.repeat(np.arange(group * members, (group + 1) * members), mine[c])
                owners[rng.permutation(pool) if shuffle else pool] = ids
    train, test = (Index.from_owners(owners, groups * members) for _, _, owners in splits)
    return train, test


@dataclass(frozen=True)
class _Slices:
    """What one group has of one split: samples of each class, the equal share, and the smallest size allowed."""

    widths: Ints
    size: int
    members: int
    min_share: float
    at_least: int

    @property
    def share(self) -> float:
        return self.size / self.members

    @property
    def min_size(self) -> int:
        return max(int(self.min_share * self.share), self.at_least)


def _group(
    tables: list[_Slices], alpha: float, rng: np.random.Generator, on_degenerate: OnDegenerate, max_tries: int
) -> list[Ints]:
    """Accepted counts (classes × members) of one group, for each split."""
    classes, members = len(tables[0].widths), tables[0].members
    tries = bounded_tries(max_tries, members * classes)
    for _ in range(tries):
        counts = _draw(tables, alpha, rng, on_degenerate)
        if all(mine.sum(axis=0).min() >= table.min_size for mine, table in zip(counts, tables, strict=True)):
            return counts
    raise DataError(
        f"no Dirichlet draw with alpha = {alpha} gave each of {members} clients enough samples",
        expected=f"{tables[0].min_size} training and {tables[1].min_size} test samples within {tries} tries",
        fix="use fewer clients, a larger alpha, or a smaller partition.min_share",
    )


def _draw(
    tables: list[_Slices], alpha: float, rng: np.random.Generator, on_degenerate: OnDegenerate
) -> list[Ints]:
    counts = [np.zeros((len(table.widths), table.members), dtype=np.int64) for table in tables]
    sizes = [np.zeros(table.members, dtype=np.int64) for table in tables]
    for c in range(len(tables[0].widths)):
        # A split without samples of the class needs no room for them.
        rooms = [(size < table.share) | (table.widths[c] == 0) for size, table in zip(sizes, tables, strict=True)]
        for split, shares in enumerate(shares_with_room(rooms, alpha, rng, on_degenerate)):
            counts[split][c] = cut(shares, int(tables[split].widths[c]))
            sizes[split] += counts[split][c]
    return counts


@schemes.register("multi-dirichlet")
@dataclass(frozen=True)
class MultiDirichlet(Scheme):
    """Groups of clients with different label skew: one alpha per group.

    Clients are numbered group by group, in the order of the alphas. The test split is divided by the same draws.
    """

    needs_classes: ClassVar[bool] = True

    clients: int
    alphas: tuple[float, ...]
    min_share: float = 0.2
    on_degenerate: OnDegenerate = "redraw"
    allow_drop: bool = False
    max_tries: int = 10_000

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        self._check(len(dataset.train))
        train, test = multi_dirichlet(
            dataset.train.labels,
            dataset.test.labels,
            dataset.classes,
            self.alphas,
            rng,
            clients=self.clients,
            min_share=self.min_share,
            on_degenerate=self.on_degenerate,
            max_tries=self.max_tries,
        )
        return Partition(train, test if len(dataset.test) else None)

    def _check(self, samples: int) -> None:
        check_clients(self.clients, samples)
        if not self.alphas:
            raise ConfigError("bad value for 'partition.alphas': ()", expected="at least one alpha")
        for alpha in self.alphas:
            check_alpha(alpha, "partition.alphas")
        if not 0 <= self.min_share < 1:
            raise ConfigError(f"bad value for 'partition.min_share': {self.min_share}", expected="0 ≤ share < 1")
        groups = len(self.alphas)
        if self.clients < groups or (self.clients % groups and not self.allow_drop):
            raise ConfigError(
                f"{groups} alphas do not divide {self.clients} clients into equal groups",
                expected=f"a number of clients that is a multiple of {groups}",
                fix=f"set partition.clients = {max(1, self.clients // groups) * groups}, or "
                "partition.allow_drop = true to leave out the surplus clients",
            )
