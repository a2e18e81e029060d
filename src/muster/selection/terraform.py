"""Terraform: train again, within the round, the clients that the model fits badly (Balivada et al., 2026)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Replies, Signal
from muster.signals.losses import TrainLoss
from muster.signals.updates import FinalBiasNorm, FinalLayerNorm, FinalWeightNorm

OuterWeights = Literal["count", "samples"]

#: Splits whose variances differ by less than this share are a tie: rounding cannot tell them apart.
TIE = 1e-12

_SIGNALS: dict[str, Signal] = {
    "gradient": FinalLayerNorm(),
    "loss": TrainLoss(),
    "bias": FinalBiasNorm(),
    "weight": FinalWeightNorm(),
}


@selectors.register("terraform")
@dataclass(frozen=True)
class Terraform(Selector):
    """Retrain the clients that move the final layer most, splitting them until few are left."""

    clients_per_round: int
    #: η: the round ends when fewer hard clients than this are left.
    min_clients: int = 4
    #: T: at most this many trainings of a client in a round.
    max_iterations: int = 8
    #: Where to look for the split, as shares of the data of the clients in ascending order of magnitude.
    quartiles: tuple[float, float] = (0.25, 0.75)
    #: The measure of how badly the model fits a client: movement of the final layer (or a part of it) or training
    #: loss.
    signal: Literal["gradient", "loss", "bias", "weight"] = "gradient"
    #: How the two groups' variances are weighted: by clients (the paper's equation 5) or by samples.
    outer_weights: OuterWeights = "count"

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.min_clients < 1 or self.max_iterations < 1:
            raise ConfigError(
                f"Terraform: min_clients is {self.min_clients}, max_iterations is {self.max_iterations}",
                expected="both at least 1",
            )
        low, high = self.quartiles
        if not 0 <= low < high <= 1:
            raise ConfigError(f"Terraform: quartiles are {self.quartiles}", expected="0 ≤ low < high ≤ 1")

    def cautions(self, population: Population) -> list[str]:
        name, count = selectors.name_of(self), self.clients_per_round
        random = f"{name} is random selection here:"
        if self.max_iterations == 1:
            return [f"{random} with max_iterations = 1 no client trains again in a round"]
        most = most_hard(population.sizes, count, self.quartiles[0])
        if most < self.min_clients:
            return [
                f"{random} of {count} clients at most {most} can be hard, fewer than min_clients = "
                f"{self.min_clients}, so no client trains again in a round; choose more clients per round"
            ]
        if count - math.ceil(self.quartiles[0] * count) <= self.min_clients:
            return [
                f"{name} is nearly random selection here: {count} clients per round and min_clients = "
                f"{self.min_clients} leave at most one place for the split (with clients of equal size), so "
                "hardly any client trains again; choose more clients per round"
            ]
        return []

    def needs(self) -> tuple[Signal, ...]:
        return (_SIGNALS[self.signal],)

    def round(self, fed: View) -> Plan:
        (magnitude,) = self.needs()
        hard = fed.sample(self.clients_per_round)
        for _ in range(self.max_iterations):
            replies = yield Train(hard, report=(magnitude,), keep=self._refuse(magnitude))
            pool = replies.finite(magnitude.name)
            # In random order: of equal magnitudes on both sides of the cut, chance decides which are hard.
            lots = fed.rng.permutation(len(pool))
            clients, magnitudes = pool.clients[lots], pool[magnitude.name][lots]
            chosen = split(magnitudes, fed.sizes[clients], self.quartiles, outer_weights=self.outer_weights)
            if len(chosen) < self.min_clients or len(chosen) == len(pool):
                return
            hard = self.next_clients(fed, clients, chosen)

    def next_clients(self, fed: View, trained: Ints, hard: Ints) -> Ints:
        """The clients that train again, ascending: `hard` are the hard ones' positions among those trained."""
        return np.sort(trained[hard])

    def _refuse(self, magnitude: Signal) -> Callable[[Replies], Bools] | None:
        """Updates whose magnitude is not a number are not aggregated.

        The guard ensures that where the magnitude is computed from the update itself; only a loss can be broken
        while the update looks sound.
        """
        if magnitude.in_update:
            return None
        return lambda replies: np.isfinite(replies[magnitude.name])


def most_hard(sizes: Ints, count: int, low: float) -> int:
    """The most clients that a split can call hard, in any cohort of `count` clients of these `sizes`.

    The search starts where the easy ones have the share `low` of the samples. They are fewest when they are the
    largest clients of all and the hard ones the smallest.
    """
    ascending = np.sort(np.asarray(sizes, dtype=np.float64))
    for easy in range(1, count):
        large, small = ascending[len(ascending) - easy :].sum(), ascending[: count - easy].sum()
        if large >= low * (large + small):
            return count - easy
    return min(1, count)


def split(
    magnitudes: Floats,
    sizes: Ints,
    quartiles: tuple[float, float] = (0.25, 0.75),
    *,
    outer_weights: OuterWeights = "count",
) -> Ints:
    """Indices of the hard clients, ascending by magnitude (ties by index).

    The clients are sorted and cut in two where the weighted sum of the two groups' variances is smallest; the
    cut is searched between the positions at which the cumulative sizes reach the two `quartiles` of all samples.
    Ties go to the earliest cut, hence to more hard clients. Non-finite magnitudes take no part. O(n log n).
    """
    magnitudes, sizes = np.asarray(magnitudes, dtype=np.float64), np.asarray(sizes)
    finite = np.flatnonzero(np.isfinite(magnitudes))
    order = finite[np.argsort(magnitudes[finite], kind="stable")]
    if len(order) < 2:
        return order
    u, n = magnitudes[order], sizes[order]
    # A range near 1, by a power of two: exact, and squares neither vanish nor overflow.
    u = np.ldexp(u, -int(np.frexp(u[-1] - u[0])[1]))
    cumulated = np.cumsum(n)
    # `first` and `stop` count easy clients, so 1-based quartile positions and 0-based slices agree.
    first, stop = (int(np.searchsorted(cumulated, share * cumulated[-1])) + 1 for share in quartiles)
    first = min(first, len(u) - 1)
    if stop <= first:
        return order[first:]
    variances = intra_variance(u, n, outer_weights)[first - 1 : stop - 1]
    best = int(np.argmax(variances <= variances.min() * (1 + TIE)))
    return order[first + best :]


def intra_variance(u: Floats, n: Ints, outer_weights: OuterWeights = "count") -> Floats:
    """For τ = 1 … len − 1: the weighted sum of the size-weighted variances of u[:τ] and u[τ:], `u` ascending."""
    easy, hard = _squares(u, n)[:-1], _squares(u[::-1], n[::-1])[:-1][::-1]
    cumulated: Floats = np.cumsum(n).astype(np.float64)
    samples_easy, samples_hard = cumulated[:-1], cumulated[-1] - cumulated[:-1]
    clients_easy = np.arange(1, len(u))
    easy_share = clients_easy / len(u) if outer_weights == "count" else samples_easy / cumulated[-1]
    hard_share = (len(u) - clients_easy) / len(u) if outer_weights == "count" else samples_hard / cumulated[-1]
    return np.asarray(easy_share * easy / samples_easy + hard_share * hard / samples_hard)


def _squares(u: Floats, n: Ints) -> Floats:
    """Σ n·(u − mean)² of every prefix of the monotone sequence `u`.

    A client adds n·(samples before / samples with it)·(its distance from the mean before)². All terms are
    positive and distances are taken from the first value, so nothing cancels, and equal values give exactly 0.
    """
    distance = np.abs(u - u[0])
    samples = np.cumsum(n).astype(np.float64)
    means = np.cumsum(n * distance) / samples
    squares = np.zeros(len(u))
    squares[1:] = n[1:] * (samples[:-1] / samples[1:]) * (distance[1:] - means[:-1]) ** 2
    return np.cumsum(squares)
