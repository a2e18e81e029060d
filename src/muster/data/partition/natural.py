"""The data's own clients: writers, speakers, devices (LEAF; Caldas et al., 2018).

A key is what the data says about a sample's origin; usually a client is a key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError
from muster.data.federated import Dataset, Index
from muster.data.partition.base import Partition, Scheme, schemes

Small = Literal["drop", "merge"]


def clients_of_keys(sizes: Ints, min_samples: int, small: Small) -> Ints:
    """The client of every key (−1: none); keys with fewer than `min_samples` samples are dropped or merged.

    Merging joins small keys in their order until a joint client has `min_samples`. What is left at the end goes
    to the last joint client, or is dropped where there is none.
    """
    clients = np.full(len(sizes), -1, dtype=np.int64)
    large = np.flatnonzero(sizes >= max(min_samples, 1))
    clients[large] = np.arange(len(large))
    if small == "merge":
        little = np.flatnonzero((sizes > 0) & (sizes < min_samples))
        run = total = 0
        for key in little.tolist():
            clients[key] = len(large) + run
            total += int(sizes[key])
            if total >= min_samples:
                run, total = run + 1, 0
        last = len(large) + run - 1 if run else -1
        clients[little] = np.minimum(clients[little], last)
    return clients


def chosen_clients(key_clients: Ints, count: int, rng: np.random.Generator) -> Ints:
    """`count` of the clients of `key_clients`, at random, numbered in the same order; the others become −1."""
    total = int(key_clients.max(initial=-1)) + 1
    numbers = np.full(total + 1, -1, dtype=np.int64)  # the last entry serves the keys without a client
    numbers[np.sort(rng.choice(total, size=count, replace=False))] = np.arange(count)
    return numbers[key_clients]


def natural(owners: Ints, key_clients: Ints) -> Index:
    """Every client's samples, from the key of every sample and the client of every key (−1: none)."""
    by_sample = np.where(owners >= 0, key_clients[owners], -1)
    return Index.from_owners(by_sample, int(key_clients.max(initial=-1)) + 1)


def deal_keys(sizes: Ints, clients: int, per_client: int) -> Ints:
    """clients × per_client different keys each: dealt out in turn, the largest first, as often as it takes."""
    deck: Ints = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    keys = len(deck)
    turn = np.arange(per_client)
    # Steps of `clients` through the deck come back after keys / gcd turns; moving on by one then keeps keys new.
    offsets = turn * clients + turn // (keys // math.gcd(clients, keys))
    positions: Ints = (np.arange(clients)[:, None] + offsets) % keys
    return deck[positions]


def shared_keys(owners: Ints, hands: Ints, duplicate: bool) -> Index:
    """Every client's samples where clients hold the keys in their row of `hands`, and keys may have many holders.

    The holders of a key share its samples out evenly; with `duplicate` each of them has all.
    """
    clients, per_client = hands.shape
    keys, holders = hands.ravel(), np.repeat(np.arange(clients), per_client)
    by_key = Index.from_owners(owners, int(max(owners.max(initial=-1), keys.max())) + 1)
    if duplicate:
        lengths = by_key.sizes[keys]
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        samples = by_key.samples[np.repeat(by_key.starts[keys], lengths) + within]
        return Index(np.concatenate([[0], ends[per_client - 1 :: per_client]]), samples)
    order = np.argsort(keys, kind="stable")
    times = np.bincount(keys, minlength=by_key.clients)
    rank = np.arange(len(by_key.samples)) - np.repeat(by_key.starts[:-1], by_key.sizes)
    key = by_key.owners
    held = times[key] > 0
    slot = (np.cumsum(times) - times)[key[held]] + rank[held] % times[key[held]]
    by_sample = np.full(len(owners), -1, dtype=np.int64)
    by_sample[by_key.samples[held]] = holders[order][slot]
    return Index.from_owners(by_sample, clients)


@schemes.register("natural")
@dataclass(frozen=True)
class Natural(Scheme):
    """The data's own clients: writers, speakers, devices.

    `clients` takes that many of them at random (default: all). With `keys_per_client` the keys are dealt out to
    `clients` clients instead; holders of the same key share it, or with `duplicate` have all of its samples each
    (the only case in which a sample has two clients). A client's test samples are those of its keys in the test
    split; there are none where the test split does not name the owners of its samples.
    """

    clients: int | None = None
    min_samples: int = 1
    small: Small = "drop"
    keys_per_client: int | None = None
    duplicate: bool = False

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        owners, test_owners = dataset.train.owners, dataset.test.owners
        if owners is None:
            raise DataError(
                f"the data set '{dataset.name}' does not name the owners of its samples",
                expected="data with natural clients, such as femnist or shakespeare",
                fix="choose another partition.scheme; data of your own name them with clients=… (docs/own.md)",
            )
        keys = 1 + max(
            int(owners.max(initial=-1)), -1 if test_owners is None else int(test_owners.max(initial=-1))
        )
        sizes = np.bincount(owners[owners >= 0], minlength=keys)
        key_clients = clients_of_keys(sizes, self.min_samples, self.small)
        count = int(key_clients.max(initial=-1)) + 1
        if count == 0:
            raise DataError(
                f"no natural client of '{dataset.name}' has {self.min_samples} samples",
                fix="lower partition.min_samples",
            )
        if self.keys_per_client is not None:
            hands = deal_keys(np.where(key_clients >= 0, sizes, 0), *self._hands(count))
            train = shared_keys(owners, hands, self.duplicate)
            return Partition(
                train, None if test_owners is None else shared_keys(test_owners, hands, self.duplicate)
            )
        if self.clients is not None:
            key_clients = chosen_clients(key_clients, self._count(count), rng)
        train = natural(owners, key_clients)
        return Partition(train, None if test_owners is None else natural(test_owners, key_clients))

    def _count(self, there_are: int) -> int:
        if self.clients is None or not 1 <= self.clients <= there_are:
            raise ConfigError(
                f"bad value for 'partition.clients': {self.clients}",
                expected=f"1 to {there_are}, the natural clients with {self.min_samples} samples or more",
                fix="leave partition.clients out to take all of them",
            )
        return self.clients

    def _hands(self, keys: int) -> tuple[int, int]:
        if self.clients is None or self.clients < 1 or self.small == "merge":
            raise ConfigError(
                "partition.keys_per_client deals whole keys out to a number of clients",
                fix='set partition.clients, and leave partition.small = "drop"',
            )
        if self.keys_per_client is None or not 1 <= self.keys_per_client <= keys:
            raise ConfigError(
                f"bad value for 'partition.keys_per_client': {self.keys_per_client}",
                expected=f"between 1 and {keys}, the keys with {self.min_samples} samples",
            )
        return self.clients, self.keys_per_client
