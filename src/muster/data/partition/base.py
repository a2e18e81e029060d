"""Partition schemes: pure functions from labels (and attributes) and a generator to a division of the samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.errors import ConfigError
from muster.core.registry import Registry
from muster.data.federated import Dataset, Index


@dataclass(frozen=True)
class Partition:
    """Who has which training samples, and which test samples."""

    train: Index
    test: Index | None = None


class Scheme(ABC):
    """A way to divide a data set among clients. Implementations are frozen dataclasses; parameters are fields.

    >>> @dataclass(frozen=True)
    ... class InTurn(Scheme):
    ...     '''Samples are dealt to the clients in turn.'''
    ...
    ...     clients: int
    ...
    ...     def divide(self, dataset, rng):
    ...         return Partition(Index.from_owners(np.arange(len(dataset.train)) % self.clients, self.clients))
    >>> from muster.data.federated import Samples
    >>> split = Samples(np.zeros((5, 1)), np.array([0, 1, 0, 1, 0]))
    >>> InTurn(2).divide(Dataset("tiny", split, split, classes=2), np.random.default_rng(0)).train[0].tolist()
    [0, 2, 4]
    """

    #: Divides by the classes of samples: there must be some.
    needs_classes: ClassVar[bool] = False

    @abstractmethod
    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        """Which client gets which samples."""


schemes: Registry[Scheme] = Registry("partition scheme", "muster.data.partition", "muster.partitions")


def check_clients(clients: int, samples: int) -> None:
    if clients < 1:
        raise ConfigError(f"bad value for 'partition.clients': {clients}", expected="at least 1")
    if clients > samples:
        raise ConfigError(
            f"'partition.clients' is {clients}, but there are only {samples} training samples",
            expected="at least one sample per client",
            fix="ask for fewer clients",
        )
