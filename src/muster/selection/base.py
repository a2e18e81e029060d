"""Selectors: generators of requests.

One `yield` is one exchange with clients. A round is one run of the generator: it may ask, train, look at the
reports, and train again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Component, Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.core.registry import Registry
from muster.core.sampling import weighted_sample
from muster.selection.history import History
from muster.signals.base import Replies, Signal


@dataclass(frozen=True)
class Ask:
    """Measure signals on clients, without training."""

    clients: Ints
    signals: tuple[Signal, ...]
    #: The model that they measure on, as a flat vector; None: the current global model.
    parameters: Vector | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", _ids(self.clients))


@dataclass(frozen=True)
class Train:
    """Train clients from the current global model; the server aggregates what they send."""

    clients: Ints
    report: tuple[Signal, ...] = ()
    #: How often each client counts (sampling with replacement); None: once.
    multiplicity: Ints | None = None
    #: Relative aggregation weights instead of the aggregator's own; None: the aggregator decides.
    weights: Floats | None = None
    #: Looks at the reports before aggregation and says which updates to use; None: all.
    keep: Callable[[Replies], Bools] | None = None
    #: Factor of the round's learning rate for each client; None: 1 for all.
    lr_factors: Floats | None = None
    #: Factor of the local algorithm's proximal strength for each client (FedProx's μ); None: 1 for all.
    pull_factors: Floats | None = None
    #: Plain FedAvg (the mean, by `weights` or else by samples) instead of the run's aggregator, whose state
    #: stays as it is. The guard and `clip_norm` are still the run's.
    fedavg: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", _ids(self.clients))
        for name in ("multiplicity", "weights", "lr_factors", "pull_factors"):
            if getattr(self, name) is not None:  # lists are accepted too
                object.__setattr__(self, name, np.asarray(getattr(self, name)))


def _ids(clients: npt.ArrayLike) -> Ints:
    """Ids as an array; lists are accepted, and an empty one does not become an array of floats."""
    array = np.asarray(clients)
    return array.astype(np.int64) if not array.size else array


Request: TypeAlias = Ask | Train
Plan: TypeAlias = Generator[Request, Replies, None]


@dataclass(frozen=True)
class View:
    """What a real server would know at the start of a round. Arrays are read-only, with one entry per client."""

    #: 0-based.
    round: int
    #: How many rounds the run is planned for.
    rounds: int
    sizes: Ints
    #: Ids of the clients that can be reached now, ascending.
    available: Ints
    history: History
    #: This round's generator for selection.
    rng: np.random.Generator
    classes: int
    spec: ParameterSpec
    #: Virtual seconds since the start of the run; 0 throughout where there are no devices.
    now: float = 0.0
    #: `forecast(begin, end, clients)`: for each of these, by its own estimate, the share of the time from `begin`
    #: to `end` during which it will be available. None: clients come and go by rounds, or it is not known.
    forecast: Callable[[float, float, Ints], Floats] | None = None
    #: Whether answers may come in a later round than the one in which clients were told to train.
    late_answers: bool = False
    #: A selector may put here what is to be kept in the round's record, by name: numbers, texts, lists, arrays.
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        """How many clients are known."""
        return len(self.sizes)

    def sample(self, count: int, among: Ints | None = None) -> Ints:
        """`count` distinct ids, uniformly, ascending; all of them if there are no more."""
        pool = self.available if among is None else among
        if count >= len(pool):
            return np.sort(pool)
        return np.sort(self.rng.choice(pool, size=count, replace=False))

    def weighted_sample(self, count: int, weights: Floats, among: Ints | None = None) -> Ints:
        """`count` distinct ids by successive sampling ∝ `weights` (one weight for each of `among`), ascending."""
        pool = self.available if among is None else among
        return np.sort(pool[weighted_sample(weights, count, self.rng)])


class Selector(Component):
    """Decides who is asked and who trains in a round: a generator of requests, to which replies come back.

    >>> from muster.selection import Ask, Plan, Selector, Train, View
    >>> from muster.signals.losses import Loss
    >>> class WorstTwo(Selector):
    ...     '''Ask every client for its loss and train the two with the largest.'''
    ...
    ...     def round(self, fed: View) -> Plan:
    ...         losses = yield Ask(fed.available, (Loss(),))
    ...         yield Train(np.sort(losses.clients[np.argsort(-losses["loss"])[:2]]))

    `muster.run(muster.Experiment(selection=WorstTwo()))` trains with it. Without clients, a made-up federation
    answers, here with the losses of the script:

    >>> from muster.server.testing import FakeFederation
    >>> played = FakeFederation(4, script={"loss": [0.3, 0.9, 0.1, 0.5]}).play(WorstTwo())
    >>> [type(request).__name__ for request in played.requests], played.trained.tolist()
    (['Ask', 'Train'], [1, 3])
    """

    def needs(self) -> tuple[Signal, ...]:
        """The signals that this selector will ask for or have reported, as far as it declares them.

        Nothing depends on it: every request is checked when it is made. A signal that is declared here is also
        checked before round 1, so that a run that cannot work does not begin.
        """
        return ()

    def gives_multiplicity(self) -> bool:
        """Whether its trainings count clients more than once (sampling with replacement)."""
        return False

    def gives_weights(self) -> bool:
        """Whether its trainings come with aggregation weights."""
        return False

    def gives_fedavg(self) -> bool:
        """Whether some of its trainings are plain FedAvg, whatever the run's aggregator is."""
        return False

    def cautions(self, population: Population) -> list[str]:
        count = self.get_params().get("clients_per_round")
        if not isinstance(count, int) or count < population.clients or self.gives_multiplicity():
            return []
        name, everybody = selectors.name_of(self), population.clients
        return [f"{name} has nothing to select: a round has room for all {everybody} clients"]

    @abstractmethod
    def round(self, fed: View) -> Plan:
        """One round: yield Ask and Train requests, receive Replies."""


selectors: Registry[Selector] = Registry("selection method", "muster.selection", "muster.selectors", own=Selector)


def no_second_turn(selector: Selector, population: Population) -> str:
    """The caution of methods that give every client a first turn, if the rounds end before; otherwise empty."""
    name, count = selectors.name_of(selector), selector.get_params()["clients_per_round"]
    if count * population.rounds > population.clients:
        return ""
    return (
        f"{name} is random selection without repetition here: in {population.rounds} rounds of {count} clients "
        f"no client of {population.clients} has a second turn, and first turns are drawn at random; set more than "
        f"{population.clients // count} rounds"
    )


def between(least: float, most: float) -> str:
    """A range of values in words, for messages."""
    return f"at least {least}" if math.isinf(most) else f"{least} to {most}"


def check_count(selector: object, count: int, population: Population) -> None:
    """The check that nearly every selector makes: a positive number of clients, not more than there are."""
    name = type(selector).__name__
    if count < 1:
        raise ConfigError(f"{name}: clients_per_round is {count}", expected="at least 1")
    if count > population.clients:
        raise ConfigError(
            f"{name}: clients_per_round is {count}, but the federation has {population.clients} clients",
            expected=f"at most {population.clients}",
            fix="ask for fewer clients per round, or partition the data over more clients",
        )
