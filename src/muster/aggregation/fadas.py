"""FADAS: AMSGrad on the server, with steps that shorten when answers are late (Wang et al., ICML 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.aggregation.base import aggregators
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats, Vector
from muster.core.component import Population, state
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates

#: What the delay does to the learning rate: nothing, at most 1/τ (the paper's formula), or a division by τ (the
#: authors' code).
Delay = Literal["ignore", "cap", "divide"]


def delayed_rate(rate: float, oldest: int, threshold: int = 1, delay: Delay = "divide") -> float:
    """The server's learning rate for a buffer whose oldest answer has missed `oldest` aggregations.

    >>> [delayed_rate(0.5, oldest, threshold=1, delay="divide") for oldest in (0, 1, 2, 4)]
    [0.5, 0.5, 0.25, 0.125]
    >>> [delayed_rate(0.5, oldest, threshold=1, delay="cap") for oldest in (0, 1, 2, 4)]
    [0.5, 0.5, 0.5, 0.25]
    """
    if delay == "ignore" or oldest <= threshold:
        return rate
    return rate / oldest if delay == "divide" else min(rate, 1 / oldest)


@aggregators.register("fadas")
@dataclass
class FADAS(FedAvg):
    """AMSGrad on the server: steps scaled by the largest second moment so far, shorter when answers are old.

    The mean movement of the buffer takes the place of a negative gradient. Only trainable parameters take
    part.
    """

    weights: Literal["samples", "equal"] = "equal"
    server_lr: float = 0.01
    #: Shares of the first and second moment that are kept.
    beta1: float = 0.9
    beta2: float = 0.99
    #: Added to the second moment, under the root: coordinates that move much less than its root are not scaled up.
    epsilon: float = 1e-8
    #: "adam" divides the moments by 1 − β^t in step t, as the authors' code does and the paper does not.
    bias_correction: Literal["none", "adam"] = "none"
    delay: Delay = "divide"
    #: Staleness of the oldest answer of a buffer up to which the learning rate stays as it is (τ_c).
    delay_threshold: int = 1

    first: Floats = state(lambda: np.zeros(0))
    second: Floats = state(lambda: np.zeros(0))
    largest: Floats = state(lambda: np.zeros(0))
    #: Steps done.
    done: int = state(int)

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("beta1", 0 <= self.beta1 < 1, "at least 0, below 1")
        self.require("beta2", 0 <= self.beta2 < 1, "at least 0, below 1")
        self.require("epsilon", self.epsilon > 0, "a positive number (a still coordinate would give 0/0)")
        self.require("delay_threshold", self.delay_threshold >= 0, "zero or a positive number of aggregations")

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        self._oldest = 0

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        # An answer that counts nothing does not slow the others down.
        self._oldest = max(self._oldest, int(updates.staleness[weights > 0].max(initial=0)))

    def step(self, mean: Floats) -> Floats:
        if self.done == 0:
            self.first, self.second, self.largest = (np.zeros_like(mean) for _ in range(3))
        self.first = self.beta1 * self.first + (1 - self.beta1) * mean
        self.second = self.beta2 * self.second + (1 - self.beta2) * np.square(mean)
        self.largest = np.maximum(self.largest, self.second)
        self.done += 1
        rate = delayed_rate(self.server_lr, self._oldest, self.delay_threshold, self.delay)
        # The base class multiplies by the undelayed rate.
        return (rate / self.server_lr) * self._direction()

    def _direction(self) -> Floats:
        if self.bias_correction == "none":
            return self.first / np.sqrt(self.largest + self.epsilon)
        first, second = 1 - self.beta1**self.done, 1 - self.beta2**self.done
        return (math.sqrt(second) / first) * self.first / np.sqrt(self.largest + second * self.epsilon)
