"""Local noise on a signal: what leaves the client is differentially private (Dwork et al., 2006)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.privacy.entropy import SystemNoise
from muster.signals.base import Range, Sensitivity, Signal
from muster.training.context import ClientContext

Mechanism = Literal["laplace", "gaussian"]

_DELEGATED = (
    "name",
    "askable",
    "reportable",
    "uses_model",
    "in_update",
    "reveals_update",
    "needs_squared_loss",
    "client_state",
    "evaluates",
    "embeds",
    "needs_classes",
    "ranks",
)


@dataclass(frozen=True)
class Private(Signal):
    """A signal with noise: the same name and shape, so that selectors need not know."""

    signal: Signal
    mechanism: Mechanism
    #: Of each answer.
    epsilon: float
    #: Of each answer; the Laplace mechanism does not need it.
    delta: float
    bound: Sensitivity
    #: Draws from the operating system, as on a node of a federation, not from the seed, which others know.
    own_entropy: bool = False

    def __post_init__(self) -> None:
        for trait in _DELEGATED:
            object.__setattr__(self, trait, getattr(self.signal, trait))
        object.__setattr__(self, "discloses", f"{self.signal.discloses}, with noise (ε = {self.epsilon:g})")

    def width(self, population: Population) -> int:
        return self.signal.width(population)

    def allowed(self, population: Population) -> Range:
        return self.signal.allowed(population)

    def samples(self, size: int, batch_size: int) -> int:
        return self.signal.samples(size, batch_size)

    def unavailable(self, population: Population) -> str | None:
        return self.signal.unavailable(population)

    def sensitivity(self, classes: int) -> Sensitivity:
        return self.bound

    @property
    def neighbours(self) -> str:
        """Data sets that can hardly be told apart."""
        return self.bound.neighbours

    @property
    def scale(self) -> float:
        """Of the noise: b of the Laplace, σ of the normal distribution."""
        if self.mechanism == "laplace":
            return self.bound.l1 / self.epsilon
        return self.bound.l2 * gaussian_scale(self.epsilon, self.delta)

    def measure(self, client: ClientContext) -> Floats:
        exact = self.signal.measure(client)
        # A separate stream, so that the noise does not change what later measurements draw.
        rng = SystemNoise() if self.own_entropy else client.rng.spawn(1)[0]
        draw = rng.laplace if self.mechanism == "laplace" else rng.normal
        noisy = exact + draw(0.0, self.scale, len(exact))
        if self.bound.counts:
            return nearest_counts(noisy, client.size)
        return np.clip(noisy, self.bound.low, self.bound.high)


def private(signal: Signal, mechanism: Mechanism, epsilon: float, delta: float, classes: int) -> Private:
    """`signal` with noise; ConfigError if that would protect nothing or no bound is known."""
    bound = signal.sensitivity(classes)
    if signal.in_update:
        raise ConfigError(
            f"noise on '{signal.name}' would protect nothing: the server can compute it from the model update",
            fix=f"take '{signal.name}' out of privacy.signals",
        )
    if bound is None:
        raise ConfigError(
            f"no bound is known for how much one client's data can change '{signal.name}'",
            fix=f"take '{signal.name}' out of privacy.signals",
        )
    return Private(signal, mechanism, epsilon, delta, bound)


def with_own_entropy(signal: Signal) -> Signal:
    """The signal with noise that only whoever measures it can know, if it has any."""
    return replace(signal, own_entropy=True) if isinstance(signal, Private) else signal


def gaussian_scale(epsilon: float, delta: float) -> float:
    """σ of the noise that makes a signal of L2 sensitivity 1 (ε, δ)-private, as small as possible, for any ε.

    The analytic Gaussian mechanism: Balle and Wang (2018).
    """

    def excess(log_sigma: float) -> float:
        half, shift = 0.5 / math.exp(log_sigma), epsilon * math.exp(log_sigma)
        leaked = math.exp(log_ndtr(half - shift)) - math.exp(epsilon + log_ndtr(-half - shift))
        return leaked - delta

    return float(math.exp(brentq(excess, -20.0, 20.0, xtol=1e-12)))


def nearest_counts(noisy: Floats, total: float) -> Floats:
    """The closest numbers to `noisy` that are not negative and add up to `total`.

    Only noisy numbers and a total that the server knows go in, so it costs no privacy.
    """
    descending = np.sort(noisy)[::-1]
    surplus = (np.cumsum(descending) - total) / np.arange(1, len(noisy) + 1)
    last = np.flatnonzero(descending > surplus)[-1]
    return np.asarray(np.maximum(noisy - surplus[last], 0.0))
