"""Aggregators: from the updates of one training to the next global parameters.

Two kinds. A *streaming* aggregator sees one update at a time, in an order that does not depend on workers, and
never holds more than a few of them. A *matrix* aggregator gets all updates as one `clients × parameters` matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from muster.arrays import Floats, Ints, Vector
from muster.component import Component, Population
from muster.errors import ConfigError
from muster.parameters import ParameterSpec
from muster.registry import Registry


@dataclass(frozen=True)
class Update:
    """What one client sent after training, as the guard let it through."""

    client: int
    #: w_k − w^t, flat; counters (`spec.counted`) hold the client's own values. Valid until the next update is
    #: drawn: a streaming aggregator must not keep it.
    movement: Vector
    #: Training samples n_k.
    size: int
    #: Local steps τ_k actually done.
    steps: int
    #: How often this client counts (1 unless sampled with replacement).
    multiplicity: int = 1
    #: Relative weight that the selector asked for; None: the aggregator decides.
    weight: float | None = None
    #: Further vectors that the local algorithm sends (for example the change of a control variate), by name.
    extra: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class Updates:
    """All updates of one training, rows aligned, clients ascending."""

    clients: Ints
    #: clients × parameters, float32, may live in shared memory: do not keep it, do not change it.
    movements: Vector
    sizes: Ints
    steps: Ints
    multiplicity: Ints
    weights: Floats | None = None
    extra: Mapping[str, Vector] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Aggregated:
    """The result of one aggregation."""

    parameters: Vector
    #: The normalised weight of each client that was used, for the log: aligned with `clients`.
    clients: Ints
    weights: Floats


@dataclass(kw_only=True)
class Aggregator(Component):
    """Turns updates into the next global parameters."""

    #: Movements longer than this are shortened to it before anything else; None: never.
    clip_norm: float | None = None
    #: How far the server goes towards the aggregate: 1 goes all the way.
    server_lr: float = 1.0

    #: Streams updates instead of asking for the matrix.
    streaming: ClassVar[bool] = False
    #: Understands multiplicities (sampling with replacement).
    honours_multiplicity: ClassVar[bool] = True
    #: Understands weights that a selector asks for.
    honours_weights: ClassVar[bool] = True
    #: Names of the local algorithms that it works with; None: all.
    requires_algorithm: ClassVar[tuple[str, ...] | None] = None

    def check(self, population: Population) -> None:
        name = type(self).__name__
        if not self.server_lr > 0:
            raise ConfigError(f"{name}: server_lr is {self.server_lr}", expected="a positive number")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"{name}: clip_norm is {self.clip_norm}", expected="a positive number")

    def prepare(self, population: Population) -> None:
        """Learn the population before round 1 (sizes of state vectors)."""

    def broadcast(self, spec: ParameterSpec) -> Vector | None:
        """A second vector that every training client receives (for example the server's control variate)."""
        return None

    @abstractmethod
    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        """The next global parameters from the whole matrix."""


aggregators: Registry[Aggregator] = Registry("aggregation method", "muster.aggregation")


class StreamingAggregator(Aggregator):
    """An aggregator that needs one pass: `begin`, `add` for every update, `finish`."""

    streaming: ClassVar[bool] = True

    @abstractmethod
    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        """Forget the last pass."""

    @abstractmethod
    def add(self, update: Update) -> None:
        """Take one update in."""

    @abstractmethod
    def finish(self) -> Aggregated:
        """The next global parameters. Called only after at least one `add`."""

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        """The matrix form, for when something else needs the matrix: the same pass over its rows."""
        self.begin(current, spec)
        for row in range(len(updates)):
            self.add(
                Update(
                    client=int(updates.clients[row]),
                    movement=updates.movements[row],
                    size=int(updates.sizes[row]),
                    steps=int(updates.steps[row]),
                    multiplicity=int(updates.multiplicity[row]),
                    weight=None if updates.weights is None else float(updates.weights[row]),
                    extra={name: rows[row] for name, rows in updates.extra.items()},
                )
            )
        return self.finish()


class MeanAggregator(StreamingAggregator):
    """Averages the movements with weights and makes a server step with the mean. Most methods are of this kind.

    A subclass gives `weight` (unnormalised) and `step`; sums are kept in float64.
    """

    def weight(self, update: Update) -> float:
        """Unnormalised weight of one update, multiplicity not yet counted."""
        return float(update.size)

    def scaled(self, update: Update) -> Floats | Vector:
        """The movement as it enters the mean (FedNova divides by the number of steps)."""
        return update.movement

    @abstractmethod
    def step(self, current: Vector, mean: Floats, spec: ParameterSpec) -> Vector:
        """The next parameters from the mean movement."""

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        self._current, self._spec = current, spec
        self._sum = np.zeros(spec.size, dtype=np.float64)
        self._seen: list[tuple[int, float]] = []
        self._counters: tuple[float, Vector] | None = None

    def add(self, update: Update) -> None:
        own = self.weight(update) if update.weight is None else update.weight
        weight = own * update.multiplicity
        self._sum += weight * np.asarray(self.scaled(update), dtype=np.float64)
        self._seen.append((update.client, weight))
        if self._counters is None or weight > self._counters[0]:
            self._counters = (weight, update.movement[self._spec.counted].copy())

    def finish(self) -> Aggregated:
        clients = np.array([client for client, _ in self._seen], dtype=np.int64)
        weights = normalised(np.array([weight for _, weight in self._seen]))
        total = sum(weight for _, weight in self._seen)
        if not total > 0:
            raise ConfigError(
                "the aggregation weights of all updates are zero",
                fix="use weights = 'equal', or check the sample counts that clients report",
            )
        mean = self._sum / total
        result = self.step(self._current, mean, self._spec)
        assert self._counters is not None
        result[self._spec.counted] = self._counters[1]
        return Aggregated(result, clients, weights)


def normalised(weights: Floats) -> Floats:
    """Weights that sum to 1; equal ones when all are zero."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))
