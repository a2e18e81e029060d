"""Aggregators: from the updates of one training to the next global parameters.

Two kinds. A *streaming* aggregator sees one update at a time, in an order that does not depend on workers, and
never holds more than a few of them. A *matrix* aggregator gets all updates as one `clients × parameters` matrix.

Trainable parameters take the method's step, multiplied by the server's learning rate. Float buffers (running
statistics) are estimates, not parameters: they take the plain average of the clients', whatever the step, or in
robust methods the median (`_robust`). Counters are copied: from the client with the largest weight where updates
are streamed, else from the one in the middle, which no single client decides.

With asynchrony, answers may belong to older models (see docs/staleness.md). Every aggregator declares in `stale`
how it treats them; one that declares nothing is not given any.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from muster.aggregation._blocks import accumulate, combination
from muster.aggregation.staleness import Discount, discounts
from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Component, Population
from muster.core.errors import ConfigError, TrainingError
from muster.core.parameters import ParameterSpec
from muster.core.registry import Registry
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.updates.table import Updates, capped, total_of

#: How an aggregator treats an answer to an older model: it looks at the movement alone, or at the model that
#: the client sent, which is known from the drift of its version.
StaleUse: TypeAlias = Literal["movements", "models"]


@dataclass(frozen=True)
class Aggregated:
    """The result of one aggregation."""

    parameters: Vector
    #: The normalised weight of each client that was used, for the log: aligned with `clients`.
    clients: Ints
    weights: Floats


@dataclass(kw_only=True)
class Aggregator(Component):
    """Turns updates into the next global parameters.

    >>> import muster
    >>> class EqualMean(Aggregator):
    ...     '''Every update counts the same, however many samples are behind it.'''
    ...
    ...     def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
    ...         return self.averaged(current, updates, np.full(len(updates), 1 / len(updates)), spec)
    >>> selection = {"method": "random", "clients_per_round": 4}
    >>> experiment = muster.Experiment(rounds=1, selection=selection, aggregation=EqualMean())
    >>> result = muster.run(experiment, workers=0)
    >>> [float(weight) for weight in result.records[0].trainings[0].weights]
    [0.25, 0.25, 0.25, 0.25]
    """

    #: Movements longer than this are shortened to it before anything else; None: never.
    clip_norm: float | None = None
    #: How far the server moves towards the aggregate: 1 is all the way.
    server_lr: float = 1.0
    #: No client has more than this share of the weights, whatever sample count or loss it states; None: any share.
    max_weight: float | None = None

    #: Streams updates instead of asking for the matrix.
    streaming: ClassVar[bool] = False
    #: Understands multiplicities (sampling with replacement).
    honours_multiplicity: ClassVar[bool] = True
    #: Weights clients by what they state, so that `max_weight` applies.
    bounds_weights: ClassVar[bool] = False
    #: Understands weights that a selector asks for.
    honours_weights: ClassVar[bool] = True
    #: Compares clients with a training on the server's own data, which `trust` passes in.
    needs_root: ClassVar[bool] = False
    #: Draws random numbers, from the generator that `draw_from` passes in.
    draws: ClassVar[bool] = False
    #: Names of the local algorithms that it works with; None: all.
    requires_algorithm: ClassVar[tuple[str, ...] | None] = None
    #: How it treats answers to older models; None: it cannot use them, and a pacing that lets late answers in
    #: is refused before round 1.
    stale: ClassVar[StaleUse | None] = None
    #: Why it cannot, for the message.
    not_stale: ClassVar[str] = "it does not say how it treats answers to older models"
    #: Keeps the updates of individual clients between rounds, so that their sum is not enough.
    keeps_updates: ClassVar[bool] = False

    def check(self, population: Population) -> None:
        self.require("server_lr", self.server_lr > 0, "a positive number")
        self.require("clip_norm", self.clip_norm is None or self.clip_norm > 0, "a positive number")
        self.require("max_weight", self.max_weight is None or 0 < self.max_weight <= 1, "above 0, at most 1")
        if self.max_weight is not None and not self.bounds_weights:
            raise ConfigError(
                f"{type(self).__name__}: max_weight is {self.max_weight}, but the method does not weight clients "
                "by what they state",
                fix="leave max_weight out",
            )

    def require(self, option: str, holds: bool, expected: str) -> None:
        """Refuse an option's value unless the condition on it holds (NaN never does)."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {option} is {getattr(self, option)}", expected=expected)

    def cautions(self, population: Population) -> list[str]:
        name, cohort = aggregators.name_of(self), population.cohort
        if cohort == 1:
            return [] if self.streaming else [f"{name} has nothing to compare: it gets one update at a time"]
        if cohort is not None and self.max_weight is not None and self.max_weight * cohort <= 1:
            return [
                f"{name} weights all clients alike here: of {cohort} none may have more than {self.max_weight:g}"
            ]
        return []

    def prepare(self, population: Population) -> None:
        """Learn the population: before round 1, and again before a round that clients have joined in."""

    def reports(self) -> tuple[Signal, ...]:
        """Signals that every training client must report, because the weights depend on them."""
        return ()

    def check_training(self, training: LocalTraining, algorithm: LocalAlgorithm) -> None:
        """Refuse kinds of local training that the method would misunderstand."""

    def objections(self, updates: Updates) -> dict[int, str]:
        """Why the method cannot use rows, by row, judged by their numbers.

        The server leaves these updates out and records why, as it does with those that the guard refuses.
        """
        return {}

    def trust(self, movement: Vector) -> None:
        """Before each aggregation, if the method `needs_root`: the movement of a training on the server's data."""

    def draw_from(self, rng: np.random.Generator) -> None:
        """Before each aggregation, if the method `draws`: a generator of its own, derived from the run's seed."""

    def broadcast(self, spec: ParameterSpec) -> Vector | None:
        """A second vector that every training client receives (for example the server's control variate)."""
        return None

    @abstractmethod
    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        """The next global parameters from the whole matrix."""

    def moved(
        self, current: Vector, step: Floats, spec: ParameterSpec, updates: Updates, weights: Floats
    ) -> Aggregated:
        """The result of moving by `step` (all entries but counters) from the current parameters."""
        # The caller gives up the step: changing it in place saves a float64 copy of the model.
        step[spec.trainable] *= self.server_lr
        parameters = np.empty(spec.size, dtype=np.float32)
        np.add(current[spec.averaged], step, out=parameters[spec.averaged], casting="same_kind")
        counters = votes(updates, spec.counted)
        parameters[spec.counted] = np.sort(counters, axis=0)[(len(counters) - 1) // 2]
        return Aggregated(parameters, updates.clients, weights)

    def averaged(self, current: Vector, updates: Updates, weights: Floats, spec: ParameterSpec) -> Aggregated:
        """The result of a mean of the movements with normalised weights."""
        step = combination(updates.movements[:, spec.averaged], weights)
        return self.moved(current, step, spec, updates, weights)


aggregators: Registry[Aggregator] = Registry(
    "aggregation method", "muster.aggregation", "muster.aggregators", own=Aggregator
)


@dataclass(kw_only=True)
class DiscountingAggregator(Aggregator):
    """What aggregators with weights have in common: an older answer may count less."""

    #: How the weight of an answer falls with the number of aggregations that it has missed (τ): not at all,
    #: (1 + τ)^−a, or 1 up to b and then 1 / (a (τ − b) + 1).
    staleness: Discount = "constant"
    #: None: 0.5 for a polynomial, 10 for a hinge.
    staleness_a: float | None = None
    staleness_b: int = 4

    def check(self, population: Population) -> None:
        super().check(population)
        given = self.staleness_a
        self.require("staleness_a", given is None or 0 <= given < np.inf, "zero or a positive number")
        self.require("staleness_b", self.staleness_b >= 0, "zero or a positive number of aggregations")

    def cautions(self, population: Population) -> list[str]:
        found = super().cautions(population)
        if population.late_answers is False and self.staleness != _default(self, "staleness"):
            found.append("aggregation.staleness has no effect here: no answer is ever late in this run")
        return found

    def discount(self, updates: Updates) -> Floats:
        """The factor of each update's weight; 1 for a fresh one."""
        return discounts(self.staleness, updates.staleness, self.staleness_a, self.staleness_b)


class StreamingAggregator(Aggregator):
    """An aggregator that needs one pass: `begin`, `add` for every part of the answers, `finish`."""

    streaming: ClassVar[bool] = True

    @abstractmethod
    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        """Forget the last pass."""

    @abstractmethod
    def add(self, updates: Updates) -> None:
        """Add some updates, row by row; their vectors are not to be kept."""

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
        self.add(updates)
        return self.finish()


class MeanAggregator(StreamingAggregator):
    """Averages the movements with weights and makes a server step with the mean. Most methods are of this kind.

    A subclass gives `weight`, and where it differs from the mean, `scale` and `step`. Sums are kept in float64,
    and rows are added one at a time: the result does not depend on how answers were divided into parts.
    """

    bounds_weights: ClassVar[bool] = True

    def weight(self, updates: Updates) -> Floats:
        """Unnormalised weight of each update, multiplicity not yet counted."""
        return updates.sizes.astype(np.float64)

    def discount(self, updates: Updates) -> Floats:
        """Factor of each weight, the selector's too, for what the update has missed."""
        return np.ones(len(updates))

    def scale(self, updates: Updates) -> Floats:
        """Factor of the trainable part of each movement as it enters the mean."""
        return np.ones(len(updates))

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        """Called with every part and its weights, for methods that need further sums over the updates."""

    def step(self, mean: Floats) -> Floats:
        """The server's step from the mean of the trainable movements, which may be changed in place."""
        return mean

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        if self.max_weight is None:
            return super().aggregate(current, updates, spec)
        # A cap depends on all weights, so this needs the whole table.
        discount = self.discount(updates)
        counted = capped(self.undiscounted(updates) * discount, self.max_weight)
        factors = updates.multiplicity * discount
        weights = np.divide(counted, factors, out=np.zeros(len(updates)), where=factors > 0)
        return super().aggregate(current, replace(updates, weights=weights), spec)

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        self._current, self._spec = current, spec
        self._sum = np.zeros(spec.averaged.stop)
        self._clients: list[int] = []
        self._weights: list[float] = []
        self._heaviest = 0.0
        self._counters = current[spec.counted]

    def undiscounted(self, updates: Updates) -> Floats:
        """Unnormalised weights as if all updates were fresh."""
        return (self.weight(updates) if updates.weights is None else updates.weights) * updates.multiplicity

    def add(self, updates: Updates) -> None:
        weights = self.undiscounted(updates) * self.discount(updates)
        coefficients = weights * self.scale(updates)
        self._clients += updates.clients.tolist()
        self._weights += weights.tolist()
        first = int(np.argmax(weights))
        if weights[first] > self._heaviest:
            self._heaviest = float(weights[first])
            self._counters = updates.movements[first, self._spec.counted].copy()
        self.noted(updates, weights, coefficients)
        trainable, buffers = self._spec.trainable, buffers_of(self._spec)
        accumulate(self._sum[trainable], updates.movements[:, trainable], coefficients)
        if buffers.start < buffers.stop:
            accumulate(self._sum[buffers], updates.movements[:, buffers], weights)

    def finish(self) -> Aggregated:
        weights = np.array(self._weights)
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
        return Aggregated(parameters, np.array(self._clients, dtype=np.int64), weights / total)


def _default(aggregator: Aggregator, option: str) -> object:
    return next(f.default for f in fields(aggregator) if f.name == option)


def buffers_of(spec: ParameterSpec) -> slice:
    """The float buffers: what is averaged but not trained."""
    return slice(spec.trainable.stop, spec.averaged.stop)


def votes(updates: Updates, part: slice) -> Vector:
    """A part of the movements: each as often as the selector drew its client, none to which it gave no weight."""
    rows, times = updates.movements[:, part], updates.multiplicity
    if updates.weights is not None:
        times = times * (updates.weights > 0)
    return rows if (times == 1).all() else rows.repeat(times, axis=0)


def among_more(mean: Floats, before: int, now: int) -> Floats:
    """A mean over `before` clients (0: unknown) as one over `now`; those that have joined count as zero."""
    return mean if before in (0, now) else mean * (before / now)


def running_sum(start: float, values: Floats) -> float:
    """`start` plus all values, one at a time: the same bits however the values were divided into parts."""
    return float(np.cumsum(np.concatenate([[start], values]))[-1])
