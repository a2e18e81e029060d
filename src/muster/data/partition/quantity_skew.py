"""Clients of unequal size with identically distributed labels (Li et al., "Federated learning on non-IID data
silos", 2022, for the Dirichlet form)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Index
from muster.data.partition._rounding import check_alpha, largest_remainder, symmetric_dirichlet
from muster.data.partition.base import Partition, Scheme, check_clients, schemes

Distribution = Literal["dirichlet", "lognormal", "power-law"]


def skewed_sizes(samples: int, weights: Floats, min_size: int) -> Ints:
    """`min_size` for each client, and what remains in proportion to `weights` (largest remainders)."""
    return min_size + largest_remainder(weights, samples - min_size * len(weights))


def size_weights(distribution: Distribution, clients: int, parameter: float, rng: np.random.Generator) -> Floats:
    """Relative sizes: Dir(parameter), log-normal with σ = parameter, or rank^(−parameter) in random order."""
    if distribution == "dirichlet":
        return symmetric_dirichlet(parameter, clients, rng)
    if distribution == "lognormal":
        logarithms = rng.normal(scale=parameter, size=clients)
        logarithms -= logarithms.max()  # only ratios matter, and these do not overflow
        return np.exp(logarithms)
    return np.arange(1.0, clients + 1)[rng.permutation(clients)] ** -parameter


def quantity_skew(sizes: Ints, rng: np.random.Generator) -> Index:
    """Σ sizes samples in random order, cut into parts of the given sizes."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    rng.shuffle(owners)
    return Index.from_owners(owners, len(sizes))


@schemes.register("quantity-skew")
@dataclass(frozen=True)
class QuantitySkew(Scheme):
    """Unequal sizes, equal label distributions.

    The parameter is Dirichlet's β (small: unequal), the log-normal's σ, or the power law's exponent (both: large
    is unequal). Test samples are divided at random in proportion to the training sizes.
    """

    clients: int
    distribution: Distribution = "dirichlet"
    parameter: float = 0.5
    min_size: int = 10

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        samples = len(dataset.train)
        check_clients(self.clients, samples)
        check_alpha(self.parameter, "partition.parameter")
        if self.distribution != "dirichlet" and np.isinf(self.parameter):
            raise ConfigError("bad value for 'partition.parameter': inf", expected="a finite number")
        if not 1 <= self.min_size <= samples // self.clients:
            raise ConfigError(
                f"{self.clients} clients cannot have {self.min_size} samples each: there are {samples}",
                expected="a min_size between 1 and an equal share",
                fix="lower partition.min_size or partition.clients",
            )
        weights = size_weights(self.distribution, self.clients, self.parameter, rng)
        sizes = skewed_sizes(samples, weights, self.min_size)
        test = None
        if len(dataset.test):
            test = quantity_skew(largest_remainder(sizes.astype(np.float64), len(dataset.test)), rng)
        return Partition(quantity_skew(sizes, rng), test)
