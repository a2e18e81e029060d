"""The Signal protocol, and the context in which a client measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError, nearest
from muster.core.registry import Registry
from muster.training.context import ClientContext, Trainings

if TYPE_CHECKING:
    from muster.data.federated import FederatedData
    from muster.training.base import LocalTraining

signals: Registry[Signal] = Registry("signal", "muster.signals", "muster.signals")


@dataclass(frozen=True)
class Sensitivity:
    """How much a signal can differ between two neighbouring data sets: what noise has to cover."""

    #: Largest sum of absolute differences, and largest Euclidean distance.
    l1: float
    l2: float
    #: Which data sets are neighbours, in words.
    neighbours: str
    #: Every number lies between these.
    low: float = 0.0
    high: float = float("inf")
    #: The numbers are counts that add up to the client's number of samples, which the server knows.
    counts: bool = False

    @classmethod
    def of_counts(cls) -> Sensitivity:
        """Replacing a sample takes one from a cell and adds one to another."""
        return cls(2.0, 2.0**0.5, "one sample replaced", counts=True)

    @classmethod
    def of_range(cls, width: int, high: float) -> Sensitivity:
        """Numbers between 0 and `high` of which nothing better is known: covers any change of the data."""
        return cls(width * high, width**0.5 * high, "any two data sets", high=high)


#: No client whose model still trains reports a larger number, and its square is within float32's range.
LARGEST = 1e18
#: No client has more samples.
LARGEST_COUNT = float(2**40)
#: Rounding may carry an honest number this far beyond a bound.
_SLACK = 1e-6


@dataclass(frozen=True)
class Range:
    """Which numbers an honest client can report. Infinities and NaN are never among them.

    >>> Range(0.0, 1.0).objections(np.array([[0.2], [1e300], [np.nan]]))
    {1: 'is 1e+300, expected 0 to 1', 2: 'is nan, expected 0 to 1'}
    """

    low: float = -LARGEST
    high: float = LARGEST
    #: A client without an answer says so with NaN throughout.
    may_be_missing: bool = False

    def objections(self, rows: Floats) -> dict[int, str]:
        """What is wrong with rows, by row; clients × numbers."""
        inside = (rows >= self.low - _SLACK) & (rows <= self.high + _SLACK)
        good = inside.all(axis=1)
        if self.may_be_missing:
            good |= np.isnan(rows).all(axis=1)
        return {row: self._problem(rows[row][~inside[row]][0]) for row in np.flatnonzero(~good).tolist()}

    def _problem(self, value: float) -> str:
        return f"is {value:g}, expected {self.low:g} to {self.high:g}"


#: What a loss, a norm or a time may be.
NOT_NEGATIVE = Range(low=0.0)
#: What a number of samples may be.
COUNT = Range(0.0, LARGEST_COUNT)


class Signal(ABC):
    """A measurement on a client. Implementations are frozen dataclasses; parameters are fields.

    >>> @dataclass(frozen=True)
    ... class LargestShare(Signal):
    ...     '''How much of a client's data is of its commonest class.'''
    ...
    ...     name: ClassVar[str] = "largest_share"
    ...     discloses: ClassVar[str] = "the share of the commonest class"
    ...
    ...     def measure(self, client: ClientContext) -> Floats:
    ...         return np.array([np.bincount(client.labels).max() / client.size])

    A selector asks for it with `Ask(clients, (LargestShare(),))`. On a client it sees only what is there:

    >>> from types import SimpleNamespace
    >>> LargestShare().measure(SimpleNamespace(labels=np.array([0, 2, 2, 2]), size=4)).tolist()
    [0.75]
    """

    #: The key under which replies hold it.
    name: ClassVar[str]
    #: The kind of information that leaves the client, in words a data owner understands.
    discloses: ClassVar[str]
    #: Can be measured on request, without training.
    askable: ClassVar[bool] = True
    #: Can be reported after training.
    reportable: ClassVar[bool] = False
    #: Measuring it needs the current global model: asking for it costs a download.
    uses_model: ClassVar[bool] = False
    #: Measuring it runs all samples through the global model in evaluation mode, and draws nothing: the signals of
    #: one request that do so share the pass.
    evaluates: ClassVar[bool] = False
    #: Looks, in that pass, at what enters the classification layer.
    embeds: ClassVar[bool] = False
    #: The server could compute it from the update that it receives anyway: reporting it costs no bytes.
    in_update: ClassVar[bool] = False
    #: Derived from the update, or as revealing (a gradient, a separate model): where secure aggregation hides
    #: individual updates, asking for it would disclose them after all.
    reveals_update: ClassVar[bool] = False
    #: Needs per-sample losses during the first local epoch.
    needs_squared_loss: ClassVar[bool] = False
    #: Measuring it may draw from `ClientContext.rng`; where no signal does, none is made.
    draws: ClassVar[bool] = True
    #: The client's labels and attributes alone determine it: `measure_all` answers for many clients at once.
    of_data: ClassVar[bool] = False
    #: Looks at the classes of samples: there must be some.
    needs_classes: ClassVar[bool] = False
    #: Names of client-state vectors (see `ClientContext.state`) that measuring it reads or writes.
    client_state: ClassVar[tuple[str, ...]] = ()
    #: One number by which methods rank clients, the larger, the sooner chosen: what a liar would overstate. The
    #: section [limits] bounds it.
    ranks: ClassVar[bool] = False

    def width(self, population: Population) -> int:
        """How many numbers leave the client."""
        return 1

    def allowed(self, population: Population) -> Range:
        """What an honest client can report; the server refuses answers outside."""
        return Range()

    def samples(self, size: int, batch_size: int) -> int:
        """How many samples a client with `size` samples runs through the model when asked."""
        return size if self.uses_model else 0

    def spares(self, size: int, training: LocalTraining) -> int:
        """How many samples of a training that follows in the same round are done, or count as done, with it."""
        return 0

    def unavailable(self, population: Population) -> str | None:
        """Why this population cannot provide the signal; None when it can."""
        return None

    def sensitivity(self, classes: int) -> Sensitivity | None:
        """How much the data can change it, in a federation with this many classes; None: no bound is known."""
        return None

    @abstractmethod
    def measure(self, client: ClientContext) -> Floats:
        """The numbers that leave the client: a one-dimensional float64 array of length `width`."""

    def measure_all(self, data: FederatedData, clients: Ints) -> Floats:
        """clients × width: what `measure` gives for each, where the signal is `of_data`."""
        raise TypeError(f"the signal '{self.name}' is measured client by client")

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        """clients × width: what `measure` reports for each, where this determines it; None: it does not."""
        return None


@dataclass(frozen=True)
class Replies:
    """What came back from clients, aligned: row i of every signal is from `clients[i]`."""

    clients: Ints
    values: Mapping[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        """Shape (clients,) for signals of one number, (clients, width) for the others."""
        if name not in self.values:
            raise ConfigError(f"clients were not asked for '{name}'", expected=nearest(str(name), self.values))
        return self.values[name]

    def __len__(self) -> int:
        return len(self.clients)

    def finite(self, name: str) -> Replies:
        """Only the clients whose value of `name` is a number throughout."""
        values = self.values[name]
        keep = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        return Replies(self.clients[keep], {key: rows[keep] for key, rows in self.values.items()})
