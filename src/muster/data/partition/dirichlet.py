"""Label skew by a Dirichlet distribution: over the clients for each class (Yurochkin et al., 2019; Li et al.,
"Model-contrastive federated learning", 2021), or over the classes for each client (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.arrays import Floats, Ints
from muster.data.federated import Dataset, Index
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition._rounding import bounded_tries, check_alpha, cut, even, shares_with_room
from muster.data.partition.base import Partition, Scheme, check_clients, schemes
from muster.errors import ConfigError, DataError

OnSmall = Literal["retry", "fill"]

#: Clients that are filled at once when each has its own distribution over classes.
_BLOCK = 4096


def dirichlet_over_clients(
    labels: Ints,
    classes: int,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    balanced: bool = True,
    min_size: int = 10,
    on_small: OnSmall = "retry",
    max_tries: int = 1000,
) -> Index:
    """Every class is cut over the clients in proportions drawn from Dir(alpha, …, alpha).

    `balanced` leaves out the clients that already have their equal share. Every sample is assigned once. Tries
    are repeated until each client has `min_size` samples ("retry"), or the first one is mended by moving random
    samples from clients with more than `min_size` ("fill").
    """
    pools = shuffled_pools(labels, classes, rng)
    for _ in range(bounded_tries(max_tries, clients * classes)):
        owners, sizes = _draw(pools.sizes, clients, alpha, rng, balanced)
        if sizes.min() < min_size and on_small == "fill":
            owners = fill(owners, sizes, min_size, rng)
        elif sizes.min() < min_size:
            continue
        by_sample = np.empty_like(owners)
        by_sample[pools.samples] = owners
        return Index.from_owners(by_sample, clients)
    raise DataError(
        f"no Dirichlet draw with alpha = {alpha} gave each of {clients} clients {min_size} samples",
        expected=f"success within {bounded_tries(max_tries, clients * classes)} tries",
        fix='lower partition.min_size, raise partition.alpha, or set partition.on_small = "fill"',
    )


def _draw(
    class_sizes: Ints, clients: int, alpha: float, rng: np.random.Generator, balanced: bool
) -> tuple[Ints, Ints]:
    """The client of every sample, class after class, and the clients' sizes."""
    share = class_sizes.sum() / clients
    sizes = np.zeros(clients, dtype=np.int64)
    owners = []
    for size in class_sizes.tolist():
        if size == 0:
            continue
        room = sizes < share if balanced else np.ones(clients, dtype=np.bool_)
        (proportions,) = shares_with_room([room], alpha, rng)
        counts = cut(proportions, size)
        sizes += counts
        owners.append(np.repeat(np.arange(clients), counts))
    return np.concatenate(owners), sizes


def fill(owners: Ints, sizes: Ints, min_size: int, rng: np.random.Generator) -> Ints:
    """Bring every client to `min_size`: random samples move from clients that have more. Others stay."""
    clients = len(sizes)
    order = rng.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    missing = np.maximum(min_size - sizes, 0)
    spare = order[rank >= min_size]
    moved = rng.choice(spare, size=int(missing.sum()), replace=False)
    filled = owners.copy()
    filled[moved] = np.repeat(np.arange(clients), missing)
    return filled


def dirichlet_over_classes(
    labels: Ints, classes: int, clients: int, alpha: float, rng: np.random.Generator
) -> Index:
    """Equal clients, each filled from its own label distribution, drawn from Dir(alpha · prior).

    Samples are taken without replacement. A class that is used up leaves every distribution, which is
    renormalised; one without any mass left is drawn again on the classes that remain (the same in law).
    """
    pools = shuffled_pools(labels, classes, rng)
    stock = pools.sizes.copy()
    prior = stock / stock.sum()
    targets = even(len(labels), clients)
    taken = np.zeros((clients, classes), dtype=np.int32)
    first = 0
    while first < clients:
        present = np.flatnonzero(stock)
        needs = targets[first : first + _BLOCK]
        mixtures = _mixtures(alpha, prior[present], len(needs), rng)
        counts = rng.multinomial(needs, mixtures)
        short = (np.cumsum(counts, axis=0) > stock[present]).any(axis=1)
        accepted = int(np.argmax(short)) if short.any() else len(needs)
        taken[first : first + accepted, present] = counts[:accepted]
        stock[present] -= counts[:accepted].sum(axis=0)
        first += accepted
        if short.any():
            weights = np.zeros(classes)
            weights[present] = mixtures[accepted]
            taken[first] = _take(weights, alpha * prior, int(targets[first]), stock, rng)
            stock -= taken[first]
            first += 1
    owners = np.empty(len(labels), dtype=np.int64)
    for c in range(classes):
        owners[pools[c]] = np.repeat(np.arange(clients), taken[:, c])
    return Index.from_owners(owners, clients)


def _mixtures(alpha: float, prior: Floats, rows: int, rng: np.random.Generator) -> Floats:
    if np.isinf(alpha):
        return np.tile(prior / prior.sum(), (rows, 1))
    return rng.dirichlet(alpha * prior, size=rows)


def _take(weights: Floats, concentration: Floats, need: int, stock: Ints, rng: np.random.Generator) -> Ints:
    """Fill one client whose first draw asked for more of some class than is left. At most one pass a class."""
    taken = np.zeros(len(stock), dtype=np.int64)
    while need:
        left = stock - taken
        present = np.flatnonzero(left)
        if not weights[present].any():
            weights = np.zeros(len(stock))
            weights[present] = rng.dirichlet(concentration[present])
        wanted = rng.multinomial(need, weights[present] / weights[present].sum())
        taken[present] += np.minimum(wanted, left[present])
        need -= int(np.minimum(wanted, left[present]).sum())
    return taken


@schemes.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Label skew: the smaller alpha, the fewer classes a client has.

    over = "clients" cuts every class over the clients; over = "classes" gives equal clients with a label
    distribution of their own. Clients have the same share of each class's test samples as of its training samples.
    """

    clients: int
    alpha: float = 0.5
    over: Literal["clients", "classes"] = "clients"
    balanced: bool = True
    min_size: int = 10
    on_small: OnSmall = "retry"
    max_tries: int = 1000

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        labels = dataset.train.labels
        self._check(len(labels))
        if self.over == "classes":
            train = dirichlet_over_classes(labels, dataset.classes, self.clients, self.alpha, rng)
        else:
            train = dirichlet_over_clients(
                labels,
                dataset.classes,
                self.clients,
                self.alpha,
                rng,
                balanced=self.balanced,
                min_size=max(self.min_size, 1),
                on_small=self.on_small,
                max_tries=self.max_tries,
            )
        return Partition(train, matching_test(train, dataset, rng))

    def _check(self, samples: int) -> None:
        check_clients(self.clients, samples)
        check_alpha(self.alpha)
        if self.clients * self.min_size > samples:
            raise ConfigError(
                f"{self.clients} clients cannot have {self.min_size} samples each: there are only {samples}",
                fix="lower partition.min_size or partition.clients",
            )
