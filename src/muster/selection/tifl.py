"""TiFL: one tier of similarly fast clients per round, badly served tiers more often (Chai et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._memory import ask_once
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, selectors
from muster.signals.accuracy import Accuracy
from muster.signals.base import Replies, Signal
from muster.signals.device import DeviceTime

#: Instead of a tier: the client has none (its latency is not known, or too long).
OUT = -1


def tiers_by_latency(latencies: Floats, tiers: int, rng: np.random.Generator) -> Ints:
    """The tier of each client, 0 the fastest: tiers of (nearly) equal size; ties are broken at random.

    Clients whose latency is not finite have none.
    """
    tier = np.full(len(latencies), OUT)
    lots = rng.permutation(np.flatnonzero(np.isfinite(latencies)))
    ranked = lots[np.argsort(latencies[lots], kind="stable")]
    tier[ranked] = np.arange(len(ranked)) * tiers // max(len(ranked), 1)
    return tier


def tier_chances(accuracies: Floats, open: Bools, rng: np.random.Generator) -> Floats:
    """Probabilities of the tiers: of n open ones, that with the lowest accuracy gets n shares, the next n − 1, …

    A tier whose accuracy is not known counts as the worst; ties are broken at random. Tiers that are
    not open get none.
    """
    lots = rng.permutation(np.flatnonzero(open))
    known = np.where(np.isnan(accuracies), -np.inf, accuracies)
    ranked = lots[np.argsort(known[lots], kind="stable")]
    count = len(ranked)
    chances = np.zeros(len(accuracies))
    chances[ranked] = np.arange(count, 0, -1) / max(count * (count + 1) / 2, 1)
    return chances


@selectors.register("tifl")
@dataclass
class TiFL(Selector):
    """Random clients of one tier: tiers are formed by speed, and drawn by how badly the model serves them."""

    clients_per_round: int
    tiers: int = 5
    #: I: the tiers' accuracies are asked for every I rounds; 0: never, all tiers stay equally likely.
    interval: int = 10
    #: "stalled": probabilities change if the last tier's accuracy has not risen since last time; "always": each
    #: time.
    change: Literal["stalled", "always"] = "stalled"
    #: How often each tier may be drawn; None: ⌈rounds ÷ tiers⌉ each.
    credits: tuple[int, ...] | None = None
    #: At most this many clients of a tier are asked for the accuracy; None: all that are available.
    testers: int | None = 20
    #: Clients that take longer than this many seconds have no tier; None: no limit.
    max_latency: float | None = None
    #: Tiers are formed again every this many rounds, by measured durations where there are any; None: never.
    retier: int | None = None

    #: Seconds to (receive, compute, send), as each client reports.
    profile: Floats = state(lambda: np.zeros((0, 0)))
    tier: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    #: The longest latency in each tier.
    limits: Floats = state(lambda: np.zeros(0))
    #: How many clients had a tier when tiers were formed, and in which round that was.
    formed_of: int = state(int)
    formed_in: int = state(int)
    left: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    chances: Floats = state(lambda: np.zeros(0))
    accuracy: Floats = state(lambda: np.zeros(0))
    #: The tier that was drawn last.
    current: int = state(lambda: OUT)
    #: The last round in which accuracies were asked for.
    measured_in: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if not 1 <= self.tiers <= population.clients:
            raise ConfigError(
                f"tifl: tiers is {self.tiers}", expected=f"1 to {population.clients}, the number of clients"
            )
        if self.interval < 0:
            raise ConfigError(f"tifl: interval is {self.interval}", expected="zero or a positive number of rounds")
        if self.credits is not None and (len(self.credits) != self.tiers or min(self.credits) < 0):
            raise ConfigError(
                f"tifl: credits are {list(self.credits)}", expected=f"{self.tiers} numbers, none negative"
            )
        for key in ("testers", "max_latency", "retier"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"tifl: {key} is {value}", expected="a positive number, or nothing")

    def cautions(self, population: Population) -> list[str]:
        """Few: it selects within the round's tier, however many clients it may take."""
        if self.tiers == 1:
            return ["tifl is random selection here: all clients are in one tier; set more tiers"]
        largest = math.ceil(population.clients / self.tiers)
        if largest < self.clients_per_round:
            return [
                f"tifl trains whole tiers here: {self.tiers} tiers of {population.clients} clients have at most "
                f"{largest}, and {self.clients_per_round} are asked for; set fewer tiers"
            ]
        return []

    def depends_on_length(self) -> str:
        return "" if self.credits is not None else "tifl gives every tier a share of the rounds as its credits"

    def needs(self) -> tuple[Signal, ...]:
        return (DeviceTime(), Accuracy()) if self.interval else (DeviceTime(),)

    def round(self, fed: View) -> Plan:
        self._begin(fed)
        self.profile = yield from ask_once(DeviceTime(), self.profile, fed)
        self._assign(fed)
        if self.interval and fed.round != self.measured_in and fed.round % self.interval == 0:
            self.measured_in = fed.round
            testers = self._testers(fed)
            if len(testers):
                self._learn(fed, (yield Ask(testers, (Accuracy(),))))
        members = self._draw(fed)
        fed.notes["tier"] = self.current
        yield Train(fed.sample(self.clients_per_round, members))

    def _begin(self, fed: View) -> None:
        self.tier = grown(self.tier, fed.clients, OUT)
        if not len(self.chances):
            each = math.ceil(fed.rounds / self.tiers)
            self.left = np.full(self.tiers, each) if self.credits is None else np.array(self.credits)
            self.chances = np.full(self.tiers, 1.0 / self.tiers)
            self.accuracy = np.full(self.tiers, np.nan)

    # --- tiers -------------------------------------------------------------------------------------------

    def _assign(self, fed: View) -> None:
        """Form tiers when it is time; otherwise find a tier for newcomers."""
        latency = self._latency(fed)
        known = int(np.isfinite(latency).sum())
        due = self.retier is not None and fed.round - self.formed_in >= self.retier
        # The first clients need not be typical: once more have joined than were there, all count.
        if due or known >= 2 * self.formed_of > 0 or (known and not self.formed_of):
            self.tier = tiers_by_latency(latency, self.tiers, fed.rng)
            self.formed_of, self.formed_in = known, fed.round
            self.limits = np.full(self.tiers, -np.inf)
            np.maximum.at(self.limits, self.tier[self.tier != OUT], latency[self.tier != OUT])
        elif self.formed_of:
            new = np.flatnonzero(np.isfinite(latency) & (self.tier == OUT))
            ends = np.maximum.accumulate(self.limits)
            self.tier[new] = np.minimum(np.searchsorted(ends, latency[new]), self.tiers - 1)

    def _latency(self, fed: View) -> Floats:
        """Seconds that each client takes; inf: too long, NaN: not known."""
        latency = self.profile.sum(axis=1) if self.profile.shape[1] else np.full(fed.clients, np.nan)
        if self.retier is not None:
            measured = fed.history.durations
            latency = np.where(np.isnan(measured), latency, measured)
        return latency if self.max_latency is None else np.where(latency > self.max_latency, np.inf, latency)

    # --- accuracies --------------------------------------------------------------------------------------

    def _testers(self, fed: View) -> Ints:
        tier = self.tier[fed.available]
        some = []
        for t in range(self.tiers):
            members = fed.available[tier == t]
            some.append(fed.sample(len(members) if self.testers is None else self.testers, members))
        return np.sort(np.concatenate(some))

    def _learn(self, fed: View, replies: Replies) -> None:
        """Record the tiers' accuracies, each over all samples of its testers, and change the probabilities."""
        before = self.accuracy.copy()
        told = replies.finite(Accuracy.name)
        tier, samples = self.tier[told.clients], fed.sizes[told.clients].astype(np.float64)
        weights = np.bincount(tier, samples, self.tiers)
        sums = np.bincount(tier, samples * told[Accuracy.name], self.tiers)
        self.accuracy = np.where(weights > 0, sums / np.where(weights > 0, weights, 1.0), before)
        risen = self.current != OUT and self.accuracy[self.current] > before[self.current]
        # The first time there is nothing to compare with: then nothing has risen.
        if self.change == "always" or not risen:
            self.chances = tier_chances(self.accuracy, self.left > 0, fed.rng)

    # --- a tier ------------------------------------------------------------------------------------------

    def _draw(self, fed: View) -> Ints:
        """Draw a tier and return its available members; if no available client has a tier, all of them."""
        tier = self.tier[fed.available]
        there = np.bincount(tier[tier != OUT], minlength=self.tiers) > 0
        self.current = OUT
        if not there.any():
            return fed.available
        # Without credits no tier could be drawn: then they are ignored.
        open = there & (self.left > 0) if (there & (self.left > 0)).any() else there
        chances = np.where(open, self.chances, 0.0)
        if not chances.any():
            chances = open.astype(np.float64)
        self.current = int(fed.rng.choice(self.tiers, p=chances / chances.sum()))
        self.left[self.current] = max(0, self.left[self.current] - 1)
        members: Ints = fed.available[tier == self.current]
        return members
