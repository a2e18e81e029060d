"""REFL: clients that will soon be gone go first (Abdelmoniem et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._awaited import heard_of, none_awaited, sent_off, under_way
from muster.selection._ranking import lowest
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.selection.history import NEVER


def smoothed(estimate: float, duration: float, smoothing: float) -> float:
    """The moving average after one more round: mostly the last round, a share `smoothing` of what was before."""
    return (1 - smoothing) * duration + smoothing * estimate


def expected_stragglers(durations: Floats, started: Floats, now: float, interval: float) -> int:
    """How many of those under way will have answered when `interval` is over, by how long each took last.

    One entry per client: seconds of its last training (NaN: not known, it is not counted) and when it started.
    """
    return int(np.sum(started + durations <= now + interval))


@selectors.register("refl")
@dataclass
class Refl(Selector):
    """The least available first: of the available clients, those least likely to be so in the next round."""

    clients_per_round: int
    #: Share α of the old estimate of a round's duration in the new one.
    smoothing: float = 0.25
    #: Seconds that the first round is taken to last.
    first_estimate: float = 1000.0
    #: "share": by the share of the next round for which a client will be available; "throughout": first those
    #: that will be so throughout this round, but not throughout the next; ties broken at random.
    rank: Literal["share", "throughout"] = "share"
    #: Only this many of the available clients, drawn at random, are asked about the next round; None: all.
    candidates: int | None = None
    #: A client is chosen again after this many rounds at the earliest, unless there are not enough others.
    hold_off: int = 5
    #: "adaptive": as many fewer as answers of earlier rounds are expected to arrive during this one.
    target: Literal["fixed", "adaptive"] = "fixed"
    #: Share of clients_per_round that an adaptive target never falls below; 0: one client.
    least_target: float = 0.0

    #: The round in which each client was chosen last.
    chosen_in: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    #: Clients under way, with a note of when each started.
    awaited: Floats = state(none_awaited)
    #: Seconds that a round is expected to last.
    estimate: float | None = state(lambda: None)
    #: The last round in which this method was asked, and the time then.
    last: int = state(lambda: NEVER)
    began: float = state(float)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        for key in ("smoothing", "least_target"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"refl: {key} is {getattr(self, key)}", expected="0 to 1")
        if not 0 < self.first_estimate < math.inf:
            raise ConfigError(
                f"refl: first_estimate is {self.first_estimate}", expected="a positive number of seconds"
            )
        if self.candidates is not None and self.candidates < self.clients_per_round:
            raise ConfigError(
                f"refl: candidates is {self.candidates}",
                expected=f"at least clients_per_round, which is {self.clients_per_round}",
            )
        if self.hold_off < 0:
            raise ConfigError(f"refl: hold_off is {self.hold_off}", expected="zero or a positive number of rounds")
        if not population.timed_availability:
            raise ConfigError(
                "refl: it is not known which clients will be available in the next minutes: "
                "they always are, or come and go by rounds",
                expected="clients that come and go by time",
                fix="add a section [availability] with method = 'rhythm' or 'sessions', and a section [devices]",
            )

    def cautions(self, population: Population) -> list[str]:
        if self.candidates == self.clients_per_round and self.target == "fixed":
            return ["refl is random selection here: all candidates are chosen; set more candidates, or none"]
        return super().cautions(population)

    def round(self, fed: View) -> Plan:
        self.chosen_in = grown(self.chosen_in, fed.clients, NEVER)
        self.awaited = heard_of(self.awaited, fed.history, fed.available).awaited
        interval = self._interval(fed)
        count = self._count(fed, interval)
        asked = fed.available if self.candidates is None else fed.sample(self.candidates)
        clients = asked[lowest(self._order(fed, asked, interval), count, fed.rng)]
        self.chosen_in[clients] = fed.round
        if fed.late_answers:
            self.awaited = sent_off(self.awaited, clients, fed.history, fed.now)
        yield Train(clients)

    def _interval(self, fed: View) -> float:
        """Seconds that this round is expected to last."""
        if self.estimate is None:
            self.estimate = self.first_estimate
        if fed.round > self.last:
            if self.last != NEVER:
                duration = (fed.now - self.began) / (fed.round - self.last)
                # No training takes longer than the longest so far: the rest was waiting for clients to appear.
                longest = np.fmax.reduce(fed.history.durations, initial=0.0)
                duration = min(duration, float(longest)) if longest else duration
                self.estimate = smoothed(self.estimate, duration, self.smoothing)
            self.last, self.began = fed.round, fed.now
        return self.estimate

    def _count(self, fed: View, interval: float) -> int:
        if self.target == "fixed":
            return self.clients_per_round
        clients, started = under_way(self.awaited)
        late = expected_stragglers(fed.history.durations[clients], started, fed.now, interval)
        return max(1, math.ceil(self.least_target * self.clients_per_round - 1e-9), self.clients_per_round - late)

    def _order(self, fed: View, asked: Ints, interval: float) -> Floats:
        """For each client that was asked: small, if it should go now."""
        soon: Floats = np.zeros(len(asked))
        # A trial of this method, before a run, has no time.
        if fed.forecast is not None and interval > 0:
            soon = fed.forecast(fed.now + interval, fed.now + 2 * interval, asked)
            if self.rank == "throughout":
                stays = fed.forecast(fed.now, fed.now + interval, asked) >= 1.0
                soon = np.where(stays & (soon < 1.0), 0.0, 1.0)
        chosen = self.chosen_in[asked]
        resting = (chosen != NEVER) & (fed.round - chosen < self.hold_off)
        # Shares are at most 1: clients that rest come after all others.
        return np.where(resting, soon + 2.0, soon)
