"""The update table: the answers of clients to one training, row by row, as a struct of arrays.

Engines fill it, filters change its rows or refuse them, aggregators reduce it, records keep its numbers. A part
of a cohort and a whole cohort look the same, and so does a single answer: a table with one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints, Vector, read_only
from muster.core.errors import TrainingError
from muster.training.base import LocalAlgorithm, LocalTraining

Column: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class AnswerField:
    """One number that every client states about its training, under the name that `TrainOutcome` gives it."""

    dtype: type[np.generic]
    #: The most that an honest client can state, given how it trains and how many samples it has.
    most: Callable[[LocalTraining, LocalAlgorithm, int], float]


#: All such numbers. Declaring one here is enough: it goes from the client's training through every engine and over
#: the wire into `Updates.numbers`.
ANSWER_FIELDS: dict[str, AnswerField] = {
    # Local steps and samples of this training; what a probe did before is not counted again.
    "steps": AnswerField(np.int64, lambda training, _, size: training.steps_for(size)),
    "samples": AnswerField(
        np.int64, lambda training, algorithm, size: training.samples_for(size) + algorithm.extra_samples(size)
    ),
    # Steps that a probe had done: the movement holds them too.
    "credited_steps": AnswerField(np.int64, lambda training, _, size: training.steps_for(size)),
}


# Defaults of whole columns, one entry each.
_ONE: Ints = np.ones(1, dtype=np.int64)
_NONE: Ints = np.zeros(1, dtype=np.int64)
_FACTOR: Floats = np.ones(1)
_NO_TIME: Floats = np.zeros(1)
_NO_RATE: Floats = np.full(1, math.nan)
#: Columns that the server fills in, beside sizes and weights, with their defaults.
_OF_THE_SERVER: dict[str, Column] = {
    "multiplicity": _ONE,
    "lr": _NO_RATE,
    "lr_factors": _FACTOR,
    "version": _NONE,
    "staleness": _NONE,
    "arrived": _NO_TIME,
}


@lru_cache(maxsize=64)
def _default(name: str, rows: int) -> Column:
    """A whole column: one array for all tables of this length, because engines make many that are filled later."""
    return read_only(np.full(rows, _OF_THE_SERVER[name][0]))


@dataclass(frozen=True)
class Updates:
    """Answers to a training, rows aligned. What clients sent comes first, what the server adds follows.

    >>> from dataclasses import replace
    >>> sent = Updates.of(3, 50, np.zeros(2, dtype=np.float32), {"steps": 5, "samples": 50, "credited_steps": 0})
    >>> both = Updates.concatenated([sent, replace(sent, clients=np.array([1]))])
    >>> both.by_client().clients.tolist(), both.steps.tolist()
    ([1, 3], [5, 5])
    """

    clients: Ints
    #: Training samples n_k.
    sizes: Ints
    #: w_k − w^v, clients × parameters, with w^v the model that the client started from. Counters (`spec.counted`)
    #: hold the client's own values. Running statistics are estimates, which are averaged and not added up: an
    #: aggregator gets them relative to the current model, whatever the client started from. It may live
    #: in shared memory: valid until the next part is drawn, unless the whole matrix was asked for.
    movements: Vector
    #: The columns of `ANSWER_FIELDS`.
    numbers: Mapping[str, Column]
    #: clients × width, by signal.
    reports: Mapping[str, Floats] = field(default_factory=dict)
    #: Further vectors that the local algorithm sends (the change of a control variate, say): clients × parameters.
    extra: Mapping[str, Vector] = field(default_factory=dict)
    #: Client-side filter → whether it changed the row (1 or 0).
    changed: Mapping[str, Ints] = field(default_factory=dict)
    #: How often each client counts: 1 unless sampled with replacement.
    multiplicity: Ints = field(default_factory=lambda: _ONE)
    #: Relative weights that the selector asked for; None: the aggregator decides.
    weights: Floats | None = None
    #: Learning rate of each local training, and its ratio to the round's rate.
    lr: Floats = field(default_factory=lambda: _NO_RATE)
    lr_factors: Floats = field(default_factory=lambda: _FACTOR)
    #: The version of the global model that each client started from: how many aggregations came before it.
    version: Ints = field(default_factory=lambda: _NONE)
    #: How many aggregations there were since: 0 for an answer to the current model.
    staleness: Ints = field(default_factory=lambda: _NONE)
    #: When each answer arrived, in virtual seconds.
    arrived: Floats = field(default_factory=lambda: _NO_TIME)
    #: Of every version that is not the current model: version → w^v − w^t. So the trainable part of the model that
    #: a client sent is w^t + drifts[version] + movement, with no drift for staleness 0.
    drifts: Mapping[int, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A column that was left out has its one default for every client.
        rows = len(self.clients)
        for name, default in _OF_THE_SERVER.items():
            column = getattr(self, name)
            if len(column) != rows:
                filled = _default(name, rows) if column is default else np.full(rows, column[0])
                object.__setattr__(self, name, filled)

    @classmethod
    def of(
        cls,
        client: int,
        size: int,
        movement: Vector,
        numbers: Mapping[str, float],
        *,
        reports: Mapping[str, Floats] | None = None,
        extra: Mapping[str, Vector] | None = None,
    ) -> Updates:
        """The answer of one client."""
        return cls(
            clients=np.array([client]),
            sizes=np.array([size]),
            movements=movement[None],
            numbers={name: np.array([numbers[name]], dtype=f.dtype) for name, f in ANSWER_FIELDS.items()},
            reports={name: values[None] for name, values in (reports or {}).items()},
            extra={name: vector[None] for name, vector in (extra or {}).items()},
        )

    @classmethod
    def from_movements(
        cls,
        movements: npt.ArrayLike,
        *,
        clients: Ints | None = None,
        sizes: Ints | None = None,
        steps: Ints | None = None,
        lr: float = math.nan,
        **columns: Any,
    ) -> Updates:
        """A whole table from movements alone, to try an aggregator on: one sample and one step a client."""
        rows = np.asarray(movements, dtype=np.float32)
        stated = {name: np.zeros(len(rows), dtype=f.dtype) for name, f in ANSWER_FIELDS.items()}
        stated["steps"] = stated["steps"] + 1 if steps is None else np.asarray(steps)
        return cls(
            clients=np.arange(len(rows)) if clients is None else np.asarray(clients),
            sizes=np.ones(len(rows), dtype=np.int64) if sizes is None else np.asarray(sizes),
            movements=rows,
            numbers=stated,
            lr=np.full(len(rows), lr),
            **columns,
        )

    @classmethod
    def concatenated(cls, parts: Sequence[Updates]) -> Updates:
        """The rows of all parts in sequence; all have the same columns. No parts: an empty table."""
        if not parts:
            none = np.empty(0, dtype=np.int64)
            numbers = {name: np.empty(0, dtype=f.dtype) for name, f in ANSWER_FIELDS.items()}
            return cls(none, none, np.empty((0, 0), dtype=np.float32), numbers)
        if len(parts) == 1:
            return parts[0]
        columns = {name: _joined([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return cls(**columns, drifts={v: drift for part in parts for v, drift in part.drifts.items()})

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def steps(self) -> Ints:
        """Local steps τ_k behind each movement, a probe's included."""
        steps: Ints = self.numbers["steps"] + self.numbers["credited_steps"]
        return steps

    def report(self, name: str) -> Floats:
        """What a signal of one number says, one entry per client."""
        return self.reports[name].reshape(len(self))

    def rows(self, which: Ints | Bools | slice) -> Updates:
        """Only these rows; a slice gives views, ids and masks give copies."""
        columns = {name: _taken(getattr(self, name), which) for name in _COLUMNS}
        return Updates(**columns, drifts=self.drifts)

    def __iter__(self) -> Iterator[Updates]:
        """Tables of one row each; vectors are views."""
        return (self.rows(slice(row, row + 1)) for row in range(len(self)))

    def by_client(self) -> Updates:
        """Rows by ascending id."""
        if (self.clients[1:] >= self.clients[:-1]).all():
            return self
        return self.rows(np.argsort(self.clients))

    def without_vectors(self) -> Updates:
        """Only the numbers: movements and extra vectors will be overwritten."""
        return self._having(movements=np.empty((len(self), 0), dtype=np.float32), extra={})

    def completed(self, known: Updates, *, sizes: Ints, reports: Sequence[str]) -> Updates:
        """What clients sent, of reports only these, and what the server knows of it (`known`, by ascending id)."""
        at = np.searchsorted(known.clients, self.clients)
        return self._having(
            sizes=sizes,
            reports={name: self.reports[name] for name in reports},
            weights=None if known.weights is None else known.weights[at],
            drifts=known.drifts,
            **{name: getattr(known, name)[at] for name in _OF_THE_SERVER},
        )

    def _having(self, **columns: Any) -> Updates:
        """As `dataclasses.replace`, at a fraction of the cost: all columns have their full length already."""
        table = object.__new__(Updates)
        table.__dict__.update(self.__dict__, **columns)
        return table

    def shares(
        self, kind: Literal["samples", "equal"], discount: Floats | None = None, most: float | None = None
    ) -> Floats:
        """Normalised weights: as the selector asked, otherwise by sample counts or equal; multiplicities counted.

        `discount`: a factor of each, for what it has missed. `most`: the largest share that one client may have.
        """
        own = self.sizes.astype(np.float64) if kind == "samples" else np.ones(len(self))
        weights = self.multiplicity * (own if self.weights is None else self.weights)
        return capped(normalised(weights if discount is None else weights * discount), most)

    def drift_rows(self, part: slice) -> tuple[Vector, Ints]:
        """The drifts that these rows have, one row per version, and which of them each row has (−1: none)."""
        stale = self.staleness > 0
        versions, which = np.unique(self.version[stale], return_inverse=True)
        rows = np.empty((len(versions), part.stop - part.start), dtype=np.float32)
        for row, version in enumerate(versions.tolist()):
            rows[row] = self.drifts[version][part]
        at = np.full(len(self), -1)
        at[stale] = which
        return rows, at

    def seen_from_current(self, part: slice) -> Vector:
        """The models that clients sent, as differences from the current one; a copy only where some are stale."""
        movements = self.movements[:, part]
        if not self.staleness.any():
            return movements
        drifts, which = self.drift_rows(part)
        moved = movements.copy()
        for row in np.flatnonzero(which >= 0).tolist():
            moved[row] += drifts[which[row]]
        return moved


#: What has one entry, or one row, a client.
_COLUMNS = tuple(f.name for f in fields(Updates) if f.name != "drifts")


def normalised(weights: Floats) -> Floats:
    """Weights that sum to 1. Weights that are all zero are an error: equal ones would be a different method."""
    return weights / total_of(weights)


def capped(weights: Floats, most: float | None) -> Floats:
    """Weights with the same sum of which none is more than the share `most` of it.

    What is above the cap goes to the others in proportion to their weights, until none is above it (water
    filling). Where so few clients take part that they cannot all stay below, all weights that are not zero are
    equal. None: the weights as they are.

    >>> capped(np.array([1e9, 3.0, 1.0]), 0.5).tolist() == [5e8 + 2, 3 / 4 * (5e8 + 2), 1 / 4 * (5e8 + 2)]
    True
    """
    total = float(weights.sum())
    if most is None or not 0 < total < math.inf or weights.max() <= most * total:
        return weights
    takes_part = weights > 0
    if most * np.count_nonzero(takes_part) <= 1:
        return np.where(takes_part, total / np.count_nonzero(takes_part), 0.0)
    descending = np.sort(weights)[::-1]
    # With the k largest at the cap, the others share what is left: the first k at which none of them is above it.
    rest = np.cumsum(descending[::-1])[::-1]
    counts = np.arange(len(weights))
    left = 1 - most * counts
    possible = (left > 0) & (rest > 0)
    fits = possible & (descending * left <= most * rest * (1 + 1e-12))
    k = int(np.argmax(fits))
    # Weights at the cap are cut first: what is left may be too small to divide them by.
    shares = np.minimum(np.minimum(weights, descending[k]) / rest[k] * left[k], most)
    shares[weights > descending[k]] = most
    return np.asarray(total * (shares / shares.sum()))


def total_of(weights: Floats) -> float:
    """The sum of weights, if it can be divided by."""
    total = float(weights.sum())
    if 0 < total < math.inf:
        return total
    problem = "of all updates are zero" if total == 0 else f"sum to {total}"
    raise TrainingError(
        f"the aggregation weights {problem}", fix="check the weights that the selection method asks for"
    )


def _taken(value: Any, which: Ints | Bools | slice) -> Any:
    """Rows of a column, or of every column of a mapping."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: rows[which] for name, rows in value.items()}
    return value[which]


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: np.concatenate([value[name] for value in values]) for name in first}
    return np.concatenate(values)
