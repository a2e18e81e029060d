"""Partition schemes: pure functions from labels (and attributes) and a generator to who gets what."""

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
    """A way to divide a data set over clients. Implementations are frozen dataclasses; parameters are fields."""

    #: Divides by the classes of samples: there must be some.
    needs_classes: ClassVar[bool] = False

    @abstractmethod
    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        """Who gets what."""


schemes: Registry[Scheme] = Registry("partition scheme", "muster.data.partition", "muster.partitions")


def check_clients(clients: int, samples: int) -> None:
    if clients < 1:
        raise ConfigError(f"bad value for 'partition.clients': {clients}", expected="at least 1")
    if clients > samples:
        raise ConfigError(
            f"'partition.clients' is {clients}, but there are only {samples} training samples",
            expected="at least one sample a client",
            fix="ask for fewer clients",
        )
