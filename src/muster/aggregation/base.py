"""Aggregators: from the updates of one training to the next global parameters.

Two kinds. A *streaming* aggregator sees one update at a time, in an order that does not depend on workers, and
never holds more than a few of them. A *matrix* aggregator gets all updates as one `clients × parameters` matrix.

Trainable parameters take the method's step, multiplied by the server's learning rate. Float buffers (running
statistics) are estimates, not parameters: they take the plain average of the clients', whatever the step. Counters
are copied from the client with the largest weight.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._blocks import accumulate, combination
from muster.arrays import Floats, Ints, Vector
from muster.component import Component, Population
from muster.errors import ConfigError, TrainingError
from muster.parameters import ParameterSpec
from muster.registry import Registry
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining


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
    #: Learning rate of this local training.
    lr: float = float("nan")
    #: How many times the round's learning rate that is.
    lr_factor: float = 1.0
    #: Further vectors that the local algorithm sends (for example the change of a control variate), by name.
    extra: Mapping[str, Vector] = field(default_factory=dict)
    #: Numbers of the signals that the aggregator asked for with `reports()`, by name.
    reports: Mapping[str, Floats] = field(default_factory=dict)


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
    #: The round's learning rate, and factors of it for each client; None: 1 for all.
    lr: float = float("nan")
    lr_factors: Floats | None = None
    extra: Mapping[str, Vector] = field(default_factory=dict)
    reports: Mapping[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.clients)

    def shares(self, kind: Literal["samples", "equal"]) -> Floats:
        """Normalised weights: as the selector asked, else by sample counts or equal; multiplicities counted."""
        own = self.sizes.astype(np.float64) if kind == "samples" else np.ones(len(self))
        return normalised(self.multiplicity * (own if self.weights is None else self.weights))

    def __iter__(self) -> Iterator[Update]:
        """The rows as single updates; vectors are views."""
        for row in range(len(self)):
            lr_factor = 1.0 if self.lr_factors is None else float(self.lr_factors[row])
            yield Update(
                client=int(self.clients[row]),
                movement=self.movements[row],
                size=int(self.sizes[row]),
                steps=int(self.steps[row]),
                multiplicity=int(self.multiplicity[row]),
                weight=None if self.weights is None else float(self.weights[row]),
                lr=self.lr * lr_factor,
                lr_factor=lr_factor,
                extra={name: rows[row] for name, rows in self.extra.items()},
                reports={name: np.atleast_1d(rows[row]) for name, rows in self.reports.items()},
            )


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
        self.require("server_lr", self.server_lr > 0, "a positive number")
        self.require("clip_norm", self.clip_norm is None or self.clip_norm > 0, "a positive number")

    def require(self, option: str, holds: bool, expected: str) -> None:
        """Refuse an option's value unless the condition on it holds (NaN never does)."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {option} is {getattr(self, option)}", expected=expected)

    def prepare(self, population: Population) -> None:
        """Learn the population before round 1."""

    def reports(self) -> tuple[Signal, ...]:
        """Signals that every training client must report, because the weights depend on them."""
        return ()

    def check_training(self, training: LocalTraining, algorithm: LocalAlgorithm) -> None:
        """Refuse ways of local training that the method would misunderstand."""

    def objections(self, updates: Updates) -> dict[int, str]:
        """Why the method cannot use rows, by row, judged by their numbers.

        The server leaves these updates out and records why, as it does with those that the guard refuses.
        """
        return {}

    def broadcast(self, spec: ParameterSpec) -> Vector | None:
        """A second vector that every training client receives (for example the server's control variate)."""
        return None

    @abstractmethod
    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        """The next global parameters from the whole matrix."""

    def moved(
        self, current: Vector, step: Floats, spec: ParameterSpec, updates: Updates, weights: Floats
    ) -> Aggregated:
        """The result of going `step` (all entries but counters) from the current parameters."""
        # The step is the caller's to give away: changing it in place saves a float64 copy of the model.
        step[spec.trainable] *= self.server_lr
        parameters = np.empty(spec.size, dtype=np.float32)
        np.add(current[spec.averaged], step, out=parameters[spec.averaged], casting="same_kind")
        parameters[spec.counted] = updates.movements[int(np.argmax(weights)), spec.counted]
        return Aggregated(parameters, updates.clients, weights)

    def averaged(self, current: Vector, updates: Updates, weights: Floats, spec: ParameterSpec) -> Aggregated:
        """The result of a mean of the movements with normalised weights."""
        step = combination(updates.movements[:, spec.averaged], weights)
        return self.moved(current, step, spec, updates, weights)


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

    def add_all(self, updates: Updates) -> None:
        """Take several updates in, row by row."""
        for update in updates:
            self.add(update)

    @abstractmethod
    def finish(self) -> Aggregated:
        """The next global parameters. Called only after at least one `add`."""

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        """The matrix form, for when something else needs the matrix: the same pass over its rows."""
        for row, objection in self.objections(updates).items():
            raise TrainingError(
                f"client {updates.clients[row]}: {objection}", fix="leave out the updates that `objections` names"
            )
        self.begin(current, spec)
        self.add_all(updates)
        return self.finish()


class MeanAggregator(StreamingAggregator):
    """Averages the movements with weights and makes a server step with the mean. Most methods are of this kind.

    A subclass gives `weight`, and where it differs from the mean, `step`. Sums are kept in float64.
    """

    def weight(self, update: Update) -> float:
        """Unnormalised weight of one update, multiplicity not yet counted. Called once for each update."""
        return float(update.size)

    def scale(self, update: Update) -> float:
        """Factor of the trainable part of a movement as it enters the mean."""
        return 1.0

    def step(self, mean: Floats) -> Floats:
        """The server's step from the mean of the trainable movements, which may be changed in place."""
        return mean

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        self._current, self._spec = current, spec
        self._sum = np.zeros(spec.averaged.stop)
        self._seen: list[tuple[int, float]] = []
        self._heaviest = 0.0
        self._counters = current[spec.counted]

    def add(self, update: Update) -> None:
        self._accumulate(update.movement[None], *self._take_note(update))

    def add_all(self, updates: Updates) -> None:
        """As row by row, to the bit, but with one pass over memory for all of them."""
        self._accumulate(updates.movements, *self._take_notes(updates))

    def _take_notes(self, updates: Updates) -> tuple[Floats, Floats]:
        """`_take_note` for each of them."""
        noted = np.array([self._take_note(update) for update in updates])
        return noted[:, 0], noted[:, 1]

    def _take_note(self, update: Update) -> tuple[float, float]:
        """Remember who counts how much; the coefficients of the movement's trainable part and of its buffers."""
        weight = (self.weight(update) if update.weight is None else update.weight) * update.multiplicity
        self._seen.append((update.client, weight))
        if weight > self._heaviest:
            self._heaviest, self._counters = weight, update.movement[self._spec.counted].copy()
        return weight * self.scale(update), weight

    def _accumulate(self, rows: Vector, coefficients: float | Floats, buffer_coefficients: float | Floats) -> None:
        trainable, buffers = self._spec.trainable, buffers_of(self._spec)
        accumulate(self._sum[trainable], rows[:, trainable], np.atleast_1d(coefficients))
        if buffers.start < buffers.stop:
            accumulate(self._sum[buffers], rows[:, buffers], np.atleast_1d(buffer_coefficients))

    def finish(self) -> Aggregated:
        clients = np.array([client for client, _ in self._seen], dtype=np.int64)
        weights = np.array([weight for _, weight in self._seen])
        total = total_of(weights)
        self._sum /= total
        trainable = self._spec.trainable
        step = self.step(self._sum[trainable])
        np.multiply(step, self.server_lr, out=self._sum[trainable])
        parameters = np.empty(self._spec.size, dtype=np.float32)
        averaged = self._spec.averaged
        np.add(self._current[averaged], self._sum, out=parameters[averaged], casting="same_kind")
        parameters[self._spec.counted] = self._counters
        del self._sum
        return Aggregated(parameters, clients, weights / total)


def buffers_of(spec: ParameterSpec) -> slice:
    """The float buffers: what is averaged but not trained."""
    return slice(spec.trainable.stop, spec.averaged.stop)


def normalised(weights: Floats) -> Floats:
    """Weights that sum to 1. Weights that are all zero are an error: equal ones would be another method."""
    return weights / total_of(weights)


def total_of(weights: Floats) -> float:
    """The sum of weights that something can be divided by."""
    total = float(weights.sum())
    if 0 < total < math.inf:
        return total
    problem = "of all updates are zero" if total == 0 else f"sum to {total}"
    raise TrainingError(
        f"the aggregation weights {problem}", fix="check the weights that the selection method asks for"
    )
