"""Label skew by a Dirichlet distribution: over the clients for each class (Yurochkin et al., 2019; Li et al.,
"Model-contrastive federated learning", 2021), or over the classes for each client (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError, DataError
from muster.data.federated import Dataset, Index
from muster.data.partition._filling import deal, fill_in_order
from muster.data.partition._pools import matching_test, shuffled_pools
from muster.data.partition._rounding import bounded_tries, check_alpha, cut, even, shares_with_room
from muster.data.partition.base import Partition, Scheme, check_clients, schemes

OnSmall = Literal["retry", "fill"]


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
    prior = pools.sizes / len(labels)

    def mixtures(present: Ints, rows: int) -> Floats:
        if np.isinf(alpha):
            return np.tile(prior[present] / prior[present].sum(), (rows, 1))
        return rng.dirichlet(alpha * prior[present], size=rows)

    def propose(present: Ints, needs: Ints) -> tuple[Ints, Floats]:
        weights = mixtures(present, len(needs))
        return rng.multinomial(needs, weights), weights

    def complete(need: int, weights: Floats, stock: Ints) -> Ints:
        taken = np.zeros(len(stock), dtype=np.int64)
        while need:
            present = np.flatnonzero(stock - taken)
            mixture = weights[present] if weights[present].any() else mixtures(present, 1)[0]
            wanted = rng.multinomial(need, mixture / mixture.sum())
            got = np.minimum(wanted, (stock - taken)[present])
            taken[present] += got
            need -= int(got.sum())
        return taken

    return deal(pools, fill_in_order(pools.sizes, even(len(labels), clients), propose, complete))


@schemes.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Label skew: the smaller alpha, the fewer classes a client has.

    over = "clients" cuts every class over the clients; over = "classes" gives equal clients, each with its own
    label distribution. Clients have the same share of each class's test samples as of its training samples.
    """

    needs_classes: ClassVar[bool] = True

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
