"""FedCor: clients whose training should lower all losses, by a Gaussian process over loss changes.

Tang et al., "FedCor: Correlation-Based Active Client Selection Strategy", 2022. The covariance XᵀX + σ²I has a
low-rank part, so that the fit works with matrices of the embedding's dimension, not of the population's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Replies, Signal, signals

Likelihood = Literal["marginal", "leave-one-out"]

#: Adam's settings.
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


@selectors.register("fedcor")
@dataclass
class FedCor(Selector):
    """Learn how clients' losses move together, and train those that should pull down the most."""

    clients_per_round: int
    #: Rounds of random selection whose loss changes the first fit learns from.
    warmup: int = 25
    #: After the warm-up, every `interval`-th round is random again, and the process is fitted to what it changed.
    interval: int = 5
    #: Numbers in a client's embedding.
    dimension: int = 15
    #: σ: standard deviation of what the embedding does not explain.
    noise: float = 0.01
    #: γ: an observation's weight is multiplied by it for every round that it is older than the newest one.
    discount: float = 0.8
    #: Observations that are more than this many rounds older than the newest are forgotten.
    memory: int = 10
    #: β: a client's score is multiplied by it whenever it was selected, until the next fit.
    annealing: float = 0.9
    #: What the fit maximises.
    likelihood: Likelihood = "marginal"
    #: Steps of the first fit, and of later ones.
    steps: tuple[int, int] = (1000, 100)
    #: Adam's learning rate.
    lr: float = 0.01
    #: Chance that a pick is random instead.
    epsilon: float = 0.0

    #: dimension × clients; None before the first fit.
    _embedding: Floats | None = state(lambda: None)
    #: Observed loss changes, one row each, the newest last; NaN where a client was not measured.
    _changes: Floats = state(lambda: np.zeros((0, 0)))
    #: The round of each observation.
    _rounds: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    _annealed: Floats = state(lambda: np.zeros(0))
    #: Last measured losses, and the round at whose start they hold.
    _losses: Floats = state(lambda: np.zeros(0))
    _losses_at: int = state(lambda: -1)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        positive: dict[str, float] = {
            "warmup": self.warmup,
            "interval": self.interval,
            "dimension": self.dimension,
        }
        positive |= {"noise": self.noise, "memory": self.memory, "lr": self.lr, "steps": min(self.steps)}
        for name, value in positive.items():
            if not value > 0:
                raise ConfigError(f"FedCor: {name} is {value}", expected="a positive number")
        for name, share in {"discount": self.discount, "annealing": self.annealing}.items():
            if not 0 < share <= 1:
                raise ConfigError(f"FedCor: {name} is {share}", expected="above 0, at most 1")
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"FedCor: epsilon is {self.epsilon}", expected="0 to 1")

    def cautions(self, population: Population) -> list[str]:
        if population.rounds <= self.warmup + 1:
            return [
                f"fedcor is random selection here: {population.rounds} rounds are over before the first choice, "
                f"which comes after a warm-up of {self.warmup} and one round more; set a shorter warmup"
            ]
        if self.interval == 1:
            return ["fedcor is random selection here: with interval = 1 every round is a random one"]
        if self.epsilon == 1:
            return ["fedcor is random selection here: with epsilon = 1 every pick is a random one"]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("loss", {}),)

    def round(self, fed: View) -> Plan:
        self._make_room(fed.clients)
        if self._embedding is not None and fed.round % self.interval != 0:
            chosen = self._choose(fed, self._embedding)
            self._annealed[chosen] *= self.annealing
            yield Train(chosen)
            return
        if self._losses_at != fed.round:
            self._losses = self._all_losses(fed, (yield Ask(fed.available, self.needs())))
        before = self._losses
        yield Train(fed.sample(self.clients_per_round))
        after = self._all_losses(fed, (yield Ask(fed.available, self.needs())))
        self._losses, self._losses_at = after, fed.round + 1
        self._learn(fed, after - before)

    def _make_room(self, clients: int) -> None:
        self._annealed = grown(self._annealed, clients, 1.0)
        self._losses = grown(self._losses, clients, np.nan)
        self._changes = grown(self._changes.T, clients, np.nan).T
        if self._embedding is not None:
            self._embedding = grown(self._embedding.T, clients, 0.0).T

    def _all_losses(self, fed: View, replies: Replies) -> Floats:
        replies = replies.finite("loss")
        losses = np.full(fed.clients, np.nan)
        losses[replies.clients] = replies["loss"]
        return losses

    def _learn(self, fed: View, change: Floats) -> None:
        """Add an observation and fit, once the warm-up is over."""
        if np.isfinite(change).any():
            kept = fed.round - self._rounds <= self.memory
            self._changes = np.vstack([self._changes[kept], change])
            self._rounds = np.append(self._rounds[kept], fed.round)
        if fed.round < self.warmup or len(self._changes) == 0:
            return
        first = self._embedding is None
        start = initial(self._changes, self.dimension, fed.rng) if self._embedding is None else self._embedding
        self._embedding = fit(
            self._changes,
            start,
            discounts(self._rounds, self.discount),
            noise=self.noise,
            steps=self.steps[0] if first else self.steps[1],
            lr=self.lr,
            likelihood=self.likelihood,
        )
        self._annealed[:] = 1.0

    def _choose(self, fed: View, embedding: Floats) -> Ints:
        pool = fed.available
        if len(pool) <= self.clients_per_round:
            return pool
        # Clients with equal scores, for instance newcomers of one size, are taken in random order.
        pool = fed.rng.permutation(pool)
        seen = embedding[:, pool]
        covariance = seen.T @ seen + self.noise**2 * np.eye(len(pool))
        shares = fed.sizes[pool] / fed.sizes[pool].sum()
        picked = select(
            covariance,
            shares,
            self.clients_per_round,
            annealed=self._annealed[pool],
            floor=self.noise**2,
            epsilon=self.epsilon,
            rng=fed.rng,
        )
        return np.sort(pool[picked])


def initial(changes: Floats, dimension: int, rng: np.random.Generator) -> Floats:
    """A random embedding under which losses vary as much as they were seen to."""
    spread = float(np.nanstd(changes)) or 1.0
    return rng.normal(scale=spread / np.sqrt(dimension), size=(dimension, changes.shape[1]))


def discounts(rounds: Ints, discount: float = 0.8) -> Floats:
    """The weight of observations made in these rounds (ascending): `discount` for every round since, as the
    authors have it. Fits are `interval` rounds apart, so few observations matter besides the newest."""
    weights: Floats = discount ** (rounds[-1] - rounds).astype(np.float64)
    return weights


def fit(
    changes: Floats,
    embedding: Floats,
    weights: Floats,
    *,
    noise: float = 0.01,
    steps: int = 1000,
    lr: float = 0.01,
    likelihood: Likelihood = "marginal",
) -> Floats:
    """The embedding after `steps` of Adam towards the largest likelihood of `changes`, one weight for each row."""
    result, parts = embedding.copy(), by_measured(changes, weights)
    mean, square = np.zeros_like(result), np.zeros_like(result)
    for step in range(1, steps + 1):
        ascent = gradient(parts, result, noise, likelihood)
        mean = _BETA1 * mean + (1 - _BETA1) * ascent
        square = _BETA2 * square + (1 - _BETA2) * ascent**2
        size = lr / (1 - _BETA1**step)
        result += size * mean / (np.sqrt(square / (1 - _BETA2**step)) + _EPS)
    return result


def residuals_of(changes: Floats, weights: Floats) -> Floats:
    """The observations without each client's weighted mean."""
    seen = np.isfinite(changes)
    totals = np.where(seen, changes, 0.0).T @ weights
    means = totals / np.maximum(seen.T @ weights, np.finfo(np.float64).tiny)
    return changes - means


def by_measured(changes: Floats, weights: Floats) -> list[tuple[Bools, Floats, Floats]]:
    """The observations by which clients they measured: these, their residuals, and the observations' weights."""
    residuals = residuals_of(changes, weights)
    patterns, which = np.unique(np.isfinite(residuals), axis=0, return_inverse=True)
    rows = [which.ravel() == number for number in range(len(patterns))]
    return [(own, residuals[np.ix_(row, own)], weights[row]) for own, row in zip(patterns, rows, strict=True)]


def gradient(
    parts: list[tuple[Bools, Floats, Floats]], embedding: Floats, noise: float, likelihood: Likelihood
) -> Floats:
    """Gradient of what `fit` maximises, by the embedding: O(dimension² · clients) per set of measured clients."""
    total, part = np.zeros_like(embedding), _marginal if likelihood == "marginal" else _leave_one_out
    for measured, residuals, weights in parts:
        total[:, measured] += part(embedding[:, measured], residuals, weights, noise)
    return total


def _inverse_times(x: Floats, noise: float, r: Floats) -> tuple[Floats, Floats]:
    """XΣ⁻¹ and, for each row of `r`, Σ⁻¹r, by the Woodbury identity."""
    small = x @ x.T + noise**2 * np.eye(len(x))
    b: Floats = np.linalg.solve(small, x).astype(np.float64)
    return b, (r - (r @ b.T) @ x) / noise**2


def _marginal(x: Floats, r: Floats, weights: Floats, noise: float) -> Floats:
    b, a = _inverse_times(x, noise, r)
    return np.asarray((weights[:, None] * (a @ x.T)).T @ a - weights.sum() * b)


def _leave_one_out(x: Floats, r: Floats, weights: Floats, noise: float) -> Floats:
    b, a = _inverse_times(x, noise, r)
    q = (1.0 - np.einsum("dk,dk->k", x, b)) / noise**2
    u = a / q
    v = weights @ (1.0 / q + (a / q) ** 2)
    _, qu = _inverse_times(x, noise, u)
    weighted = b * v
    through = (weighted - (weighted @ x.T) @ b) / noise**2
    pull = (weights[:, None] * (qu @ x.T)).T @ a + (weights[:, None] * (a @ x.T)).T @ qu
    return np.asarray(pull - through)


def select(
    covariance: Floats,
    shares: Floats,
    count: int,
    *,
    annealed: Floats | None = None,
    floor: float = 0.0,
    epsilon: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Ints:
    """Positions of `count` clients, greedily: the one whose loss change says most about the others', and again.

    After each pick the covariance is conditioned on it, which takes the chosen out of all sums. `annealed`
    multiplies scores, `floor` is the least variance that a score is divided by, and with probability `epsilon`
    a pick is random.
    """
    covariance = covariance.copy()
    left = np.ones(len(covariance), dtype=np.bool_)
    factors = np.ones(len(covariance)) if annealed is None else annealed
    picked = np.empty(min(count, len(covariance)), dtype=np.int64)
    for i in range(len(picked)):
        variances = np.maximum(np.diag(covariance), max(floor, np.finfo(np.float64).tiny))
        scores = np.where(left, factors * (shares @ covariance) / np.sqrt(variances), -np.inf)
        best = int(np.argmax(scores))
        if rng is not None and epsilon > 0 and rng.random() < epsilon:
            best = int(rng.choice(np.flatnonzero(left)))
        picked[i] = best
        left[best] = False
        column = covariance[:, best].copy()
        covariance -= np.outer(column, column / variances[best])
    return picked
