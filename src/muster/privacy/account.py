"""Noise on what clients disclose, and an account of the guarantee over a whole run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from muster.core.arrays import Ints, State
from muster.core.component import Population, grown
from muster.core.errors import ConfigError
from muster.privacy.noise import Mechanism, private
from muster.signals.base import Signal, signals

LARGEST_EPSILON = 100.0


@dataclass(frozen=True)
class Privacy:
    """Which signals get noise before they leave the client, and how much: the section [privacy]."""

    epsilon: float
    mechanism: Mechanism = "laplace"
    #: Of each answer (Gaussian noise); also the slack of advanced composition.
    delta: float = 1e-5
    #: Names of signals; None: all for which a bound is known.
    signals: tuple[str, ...] | None = None

    def check(self, population: Population) -> None:
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise ConfigError(
                f"bad value for 'privacy.epsilon': {self.epsilon}",
                expected=f"a positive number up to {LARGEST_EPSILON:g}; more would protect nothing",
            )
        if not 0 < self.delta < 1:
            raise ConfigError(f"bad value for 'privacy.delta': {self.delta}", expected="between 0 and 1")
        for name in self.signals or ():
            signal = signals.get(name)()
            private(signal, self.mechanism, self.epsilon, self.delta, population.classes)

    def protect(self, asked: Sequence[Signal], classes: int) -> tuple[Signal, ...]:
        """The same signals, with noise on those that need it."""
        return tuple(
            private(signal, self.mechanism, self.epsilon, self.delta, classes)
            if self._covers(signal, classes)
            else signal
            for signal in asked
        )

    def _covers(self, signal: Signal, classes: int) -> bool:
        if self.signals is not None:
            return signal.name in self.signals
        return not signal.in_update and signal.sensitivity(classes) is not None


@dataclass(frozen=True)
class Spent:
    """What one kind of information has cost the client that disclosed it most often."""

    signal: str
    mechanism: str
    #: Of each answer.
    epsilon: float
    delta: float
    neighbours: str
    #: Answers of the client that gave most.
    answers: int
    #: The guarantee over all its answers, by basic and by advanced composition.
    basic: tuple[float, float]
    advanced: tuple[float, float]


class Noisy(Protocol):
    """Something that leaves clients with noise: a signal, or the update itself."""

    @property
    def name(self) -> str: ...
    @property
    def mechanism(self) -> Mechanism: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def neighbours(self) -> str: ...


@dataclass
class _Kind:
    mechanism: str
    epsilon: float
    delta: float
    slack: float
    neighbours: str
    #: Answers of each client.
    answers: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class PrivacyAccount:
    """How often each client has answered with noise, by kind of information."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def released(self, sent: Noisy, clients: Ints, population: int) -> None:
        """These clients, of a population of this size, have sent this."""
        if sent.name not in self._kinds:
            delta = 0.0 if sent.mechanism == "laplace" else sent.delta
            self._kinds[sent.name] = _Kind(
                sent.mechanism, sent.epsilon, delta, slack=sent.delta, neighbours=sent.neighbours
            )
        kind = self._kinds[sent.name]
        kind.answers = grown(kind.answers, population, 0)
        kind.answers[clients] += 1

    def spent(self) -> list[Spent]:
        """One row for each kind of information."""
        rows = []
        for name, kind in self._kinds.items():
            most = int(kind.answers.max(initial=0))
            basic = basic_composition(kind.epsilon, kind.delta, most)
            advanced = advanced_composition(kind.epsilon, kind.delta, most, kind.slack)
            rows.append(
                Spent(name, kind.mechanism, kind.epsilon, kind.delta, kind.neighbours, most, basic, advanced)
            )
        return rows

    def total(self) -> tuple[float, float]:
        """(ε, δ) of everything that the client that answered most disclosed with noise, by basic composition."""
        kinds = self._kinds.values()
        clients = max((len(kind.answers) for kind in kinds), default=0)
        epsilon, delta = np.zeros(clients), np.zeros(clients)
        for kind in kinds:
            epsilon += grown(kind.answers, clients, 0) * kind.epsilon
            delta += grown(kind.answers, clients, 0) * kind.delta
        return float(epsilon.max(initial=0.0)), float(delta.max(initial=0.0))

    def state_dict(self) -> State:
        return {name: asdict(kind) for name, kind in self._kinds.items()}

    def load_state_dict(self, values: State) -> None:
        self._kinds = {name: _Kind(**kind) for name, kind in values.items()}


def basic_composition(epsilon: float, delta: float, answers: int) -> tuple[float, float]:
    """(ε, δ) of this many answers: the sums."""
    return answers * epsilon, answers * delta


def advanced_composition(epsilon: float, delta: float, answers: int, slack: float) -> tuple[float, float]:
    """(ε, δ) of this many answers after Dwork, Rothblum and Vadhan (2010), at the price of `slack` more δ.

    Better than the sums for many answers with small ε, worse for few: the caller may take the smaller one.
    """
    if answers == 0:
        return 0.0, 0.0
    spread = math.sqrt(2 * answers * math.log(1 / slack)) * epsilon
    return spread + answers * epsilon * math.expm1(epsilon), answers * delta + slack
