"""Oort: a bandit over statistical utility and speed (Lai et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._awaited import heard_of, none_awaited, sent_off, without
from muster.selection._ranking import highest, lowest
from muster.selection.base import Ask, Plan, Selector, Train, View, between, check_count, selectors
from muster.signals.base import Replies, Signal
from muster.signals.device import DeviceTime
from muster.signals.losses import SquaredLoss, TrainLoss


def speed_penalty(durations: Floats, preferred: float, alpha: float) -> Floats:
    """Factors for clients that take longer than the preferred duration; 1 for unknown durations."""
    durations = np.asarray(durations, dtype=np.float64)
    slow = durations > preferred
    return np.where(slow, np.divide(preferred, durations, where=slow, out=np.ones_like(durations)) ** alpha, 1.0)


def scores(
    rewards: Floats,
    last_rounds: Ints,
    durations: Floats,
    round: int,
    preferred: float = math.inf,
    *,
    clip_bound: float = 0.95,
    alpha: float = 2.0,
) -> Floats:
    """What exploitation ranks explored clients by: clipped utility in [0, 1] plus staleness, times speed.

    `round` counts from 1, `last_rounds` says when each client took part last.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    ordered = np.sort(rewards)
    clip = ordered[min(int(len(ordered) * clip_bound), len(ordered) - 1)]
    low = 0.999 * ordered[0]
    spread = max(ordered[-1] - low, 1e-4)
    staleness = np.sqrt(0.1 * math.log(round) / np.maximum(last_rounds, 1))
    statistical = (np.minimum(rewards, clip) - low) / spread
    return np.asarray((statistical + staleness) * speed_penalty(durations, preferred, alpha))


def preferred_duration(durations: Floats, percentage: float) -> float:
    """The duration that this percentage of the clients with known durations stay below; ∞ from 100 % on."""
    known = durations[np.isfinite(durations)]
    if percentage >= 100 or not len(known):
        return math.inf
    place = min(int(len(known) * percentage / 100), len(known) - 1)
    return float(np.partition(known, place)[place])


@selectors.register("oort")
@dataclass
class Oort(Selector):
    """High and uncertain utility first, slow clients penalised, new clients explored."""

    clients_per_round: int
    #: "squared_loss": root mean square of the samples' losses; "sqrt_loss": root of the mean loss.
    util: Literal["squared_loss", "sqrt_loss"] = "squared_loss"
    #: Most samples that a utility counts, where local training does not see all (steps × batch size); None: all.
    max_samples: int | None = None
    #: Where durations come from. "measured": how long the server waited for each client's last training;
    #: "profiled": the same, and before its first training what a client reports when asked; "reported": what
    #: clients report with their updates; "asked": the same, and asked for once beforehand; "none": speed does not
    #: matter.
    speed: Literal["measured", "profiled", "reported", "asked", "none"] = "measured"
    #: Exponent α of the penalty for slow clients.
    round_penalty: float = 2.0
    #: Share ε of exploration: start, factor per round, end.
    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.2
    #: "code": the percentage of clients that are fast enough moves when utility stagnates or jumps; "paper": the
    #: preferred duration grows by pacer_seconds (where it also starts) when utility falls.
    pacer: Literal["code", "paper"] = "code"
    #: Window of the pacer in rounds.
    pacer_step: int = 20
    #: Percentage points per step ("code").
    pacer_delta: float = 5.0
    #: Seconds per step ("paper").
    pacer_seconds: float | None = None
    #: Percentage of clients that are fast enough at the start ("code").
    round_threshold: float = 30.0
    #: Utilities above this quantile count as the quantile.
    clip_bound: float = 0.95
    #: Exploit among clients with at least this share of the best score that ranks outside the places.
    cut_off: float = 0.95
    #: Explore among this many times more clients than are needed, the most promising ones.
    sample_window: float = 5.0
    #: Clients that took part more often are left out; −1: never.
    blacklist_rounds: int = -1
    #: Largest share of the clients that is left out.
    blacklist_max_len: float = 0.3
    #: Rounds of random clients, drawn in proportion to samples, before all this begins.
    warmup: int = 0

    reward: Floats = state(lambda: np.zeros(0))
    #: In seconds, as clients report.
    duration: Floats = state(lambda: np.zeros(0))
    last_round: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    count: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    explored: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    asked: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    #: Clients under way, with a note of whether they were exploited.
    awaited: Floats = state(none_awaited)
    epsilon: float | None = state(lambda: None)
    #: "code": a percentage; "paper": seconds.
    threshold: float | None = state(lambda: None)
    #: Mean rewards of exploited clients, one per round, as far back as the pacer looks.
    exploited: Floats = state(lambda: np.zeros(0))
    #: Rewards of exploited clients whose answers came between this method's trainings.
    between: Floats = state(lambda: np.zeros(0))
    rounds_done: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        ranges = {
            "exploration": (0, 1),
            "exploration_decay": (0, 1),
            "exploration_min": (0, 1),
            "clip_bound": (0, 1),
            "cut_off": (0, 1),
            "blacklist_max_len": (0, 1),
            "round_threshold": (0, 100),
            "round_penalty": (0, math.inf),
            "pacer_delta": (0, math.inf),
            "pacer_step": (1, math.inf),
            "sample_window": (1, math.inf),
            "blacklist_rounds": (-1, math.inf),
            "warmup": (0, math.inf),
        }
        for key, (least, most) in ranges.items():
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"oort: {key} is {getattr(self, key)}", expected=between(least, most))
        if self.max_samples is not None and self.max_samples < 1:
            raise ConfigError(f"oort: max_samples is {self.max_samples}", expected="at least 1")
        if self.pacer == "paper" and (self.pacer_seconds is None or not self.pacer_seconds > 0):
            raise ConfigError("oort: the pacer of the paper needs pacer_seconds", expected="a positive number")

    def cautions(self, population: Population) -> list[str]:
        if self.warmup >= population.rounds:
            return ["oort is size-weighted sampling here: all rounds belong to the warm-up; set a shorter warmup"]
        if self.exploration * self.exploration_decay == self.exploration_min == 0:
            return [
                f"oort tries no new clients here: without exploration only those of the first {self.warmup or 1} "
                "rounds are chosen again, as long as they are there; set exploration_min above 0"
            ]
        return super().cautions(population)

    @property
    def _loss(self) -> Signal:
        return SquaredLoss() if self.util == "squared_loss" else TrainLoss()

    @property
    def _report(self) -> tuple[Signal, ...]:
        return (self._loss, DeviceTime()) if self.speed in ("reported", "asked") else (self._loss,)

    def needs(self) -> tuple[Signal, ...]:
        return (self._loss, DeviceTime()) if self.speed == "profiled" else self._report

    def round(self, fed: View) -> Plan:
        self._welcome(fed.clients)
        self.between = np.append(self.between, self._catch_up(fed)[0])
        if self.speed in ("profiled", "asked"):
            yield from self._ask_durations(fed)
        self.rounds_done += 1
        clients, exploit = self._warm_up(fed) if self.rounds_done <= self.warmup else self._choose(fed)
        self.awaited = sent_off(self.awaited, clients, fed.history, np.isin(clients, exploit))
        replies = yield Train(clients, report=self._report)
        self.last_round[clients] = self.rounds_done
        self.count[clients] += 1
        self._conclude(fed, clients, exploit, replies)

    def _warm_up(self, fed: View) -> tuple[Ints, Ints]:
        """Random clients, none exploited; what they report is still learnt."""
        sizes = fed.sizes[fed.available].astype(np.float64)
        return fed.weighted_sample(self.clients_per_round, sizes), fed.available[:0]

    def _choose(self, fed: View) -> tuple[Ints, Ints]:
        """Who trains, and which of them are exploited."""
        self._pace()
        preferred = self._preferred(fed)
        if 0 < preferred < math.inf:
            fed.notes["preferred_duration"] = preferred
        allowed = fed.available[~self._blacklisted(fed.rng)[fed.available]]
        exploit = self._exploit(fed, allowed[self.explored[allowed]], len(allowed), preferred)
        explore = self._explore(fed, allowed[~self.explored[allowed]], len(exploit), preferred)
        return self._padded(fed, np.concatenate([exploit, explore]), allowed), exploit

    def _welcome(self, clients: int) -> None:
        self.reward = grown(self.reward, clients, 0.0)
        self.duration = grown(self.duration, clients, np.nan)
        self.last_round = grown(self.last_round, clients, 0)
        self.count = grown(self.count, clients, 0)
        self.explored = grown(self.explored, clients, False)
        self.asked = grown(self.asked, clients, False)
        if self.epsilon is None:
            self.epsilon = self.exploration
        if self.threshold is None:
            self.threshold = self.round_threshold if self.pacer == "code" else self.pacer_seconds

    def _ask_durations(self, fed: View) -> Plan:
        unasked = fed.available[~self.asked[fed.available]]
        if len(unasked):
            self._note_durations((yield Ask(unasked, (DeviceTime(),))))
            self.asked[unasked] = True

    def _note_durations(self, replies: Replies) -> None:
        known = replies.finite(DeviceTime.name)
        self.duration[known.clients] = known[DeviceTime.name].sum(axis=1)

    def _pace(self) -> None:
        window = self.pacer_step
        if self.rounds_done < 2 * window or self.rounds_done % window:
            return
        earlier, recent = self.exploited[-2 * window : -window].sum(), self.exploited[-window:].sum()
        assert self.threshold is not None
        if self.pacer == "paper":
            assert self.pacer_seconds is not None
            self.threshold += self.pacer_seconds if earlier > recent else 0.0
        elif abs(recent - earlier) <= 0.1 * earlier:
            self.threshold = min(100.0, self.threshold + self.pacer_delta)
        elif abs(recent - earlier) >= 5 * earlier:
            self.threshold = max(self.pacer_delta, self.threshold - self.pacer_delta)

    def _durations(self, fed: View) -> Floats:
        """Seconds of each client's training, as far as they are known."""
        measured = fed.history.durations
        if self.speed == "measured":
            return measured
        return np.where(np.isnan(measured), self.duration, measured) if self.speed == "profiled" else self.duration

    def _preferred(self, fed: View) -> float:
        assert self.threshold is not None
        if self.speed == "none":
            return math.inf
        if self.pacer == "paper":
            return self.threshold
        return preferred_duration(self._durations(fed), self.threshold)

    def _blacklisted(self, rng: np.random.Generator) -> Bools:
        listed = np.zeros(len(self.count), dtype=np.bool_)
        if self.blacklist_rounds >= 0:
            busy = np.flatnonzero(self.count > self.blacklist_rounds)
            most = int(self.blacklist_max_len * len(self.count))
            listed[busy[lowest(-self.count[busy], most, rng)]] = True
        return listed

    def _exploit(self, fed: View, pool: Ints, allowed: int, preferred: float) -> Ints:
        assert self.epsilon is not None
        if len(pool) == allowed:
            share = 1.0  # no client is left to explore
        else:
            self.epsilon = max(self.epsilon * self.exploration_decay, self.exploration_min)
            share = 1.0 - self.epsilon
        # The small number makes up for products such as 10 · (1 − 0.9), which fall short of a whole number.
        wanted = min(int(self.clients_per_round * share + 1e-9), len(pool))
        if not wanted:
            return pool[:0]
        ranked = scores(
            self.reward[pool],
            self.last_round[pool],
            self._durations(fed)[pool],
            self.rounds_done,
            preferred,
            clip_bound=self.clip_bound,
            alpha=self.round_penalty,
        )
        place = min(wanted, len(pool) - 1)
        threshold = self.cut_off * -np.partition(-ranked, place)[place]
        good = np.flatnonzero(ranked >= threshold)
        return fed.weighted_sample(wanted, ranked[good], pool[good])

    def _explore(self, fed: View, pool: Ints, taken: int, preferred: float) -> Ints:
        wanted = min(len(pool), self.clients_per_round - taken)
        promise = fed.sizes[pool] * speed_penalty(self._durations(fed)[pool], preferred, self.round_penalty)
        window = highest(promise, max(wanted, int(self.sample_window * wanted)), fed.rng)
        return fed.weighted_sample(wanted, promise[window], pool[window])

    def _padded(self, fed: View, chosen: Ints, allowed: Ints) -> Ints:
        for pool in (allowed, fed.available):
            missing = self.clients_per_round - len(chosen)
            if missing > 0:
                chosen = np.concatenate([chosen, fed.sample(missing, np.setdiff1d(pool, chosen))])
        return np.sort(chosen)

    def _conclude(self, fed: View, clients: Ints, exploit: Ints, replies: Replies) -> None:
        """After a training: learn, and give the pacer its number if the server has waited for a client."""
        if fed.late_answers:
            exploited, waited = self._catch_up(fed, replies)
        else:
            self.awaited = without(self.awaited, clients)
            silent = np.setdiff1d(clients, replies.clients)
            exploited = self._learn(fed, replies.clients, silent, replies[self._loss.name])[
                np.isin(replies.clients, exploit)
            ]
            waited = True
        if self.speed in ("reported", "asked"):
            self._note_durations(replies)
        if waited:
            exploited = np.append(self.between, exploited)
            exploited = exploited[np.isfinite(exploited)]
            mean = exploited.mean() if len(exploited) else 0.0
            self.exploited = np.append(self.exploited, mean)[-2 * self.pacer_step :]
            self.between = np.zeros(0)

    def _catch_up(self, fed: View, replies: Replies | None = None) -> tuple[Floats, bool]:
        """Learn from all answers since the last time: rewards of exploited clients, and whether there was news."""
        news = heard_of(self.awaited, fed.history, fed.available if replies is None else None)
        self.awaited = news.awaited
        losses = fed.history.last(self._loss.name)[news.answered]
        if replies is not None and self._loss.name in replies.values:
            # The history keeps the last number; what came just now may be none.
            own = np.isin(news.answered, replies.clients)
            losses[own] = replies[self._loss.name][np.searchsorted(replies.clients, news.answered[own])]
        rewards = self._learn(fed, news.answered, news.failed, losses)
        return rewards[news.notes > 0], bool(len(news.answered) or len(news.failed))

    def _learn(self, fed: View, answered: Ints, failed: Ints, losses: Floats) -> Floats:
        """Record what clients have reported: the rewards of those that answered; NaN: no number was reported."""
        finite = np.isfinite(losses)
        known = answered[finite]
        samples = fed.sizes[known].astype(np.float64)
        if self.max_samples is not None:
            samples = np.minimum(samples, self.max_samples)
        rewards = samples * np.sqrt(np.maximum(losses[finite], 0.0))
        self.reward[known] = rewards
        self.explored[known] = True
        self.explored[answered[~finite]] = False
        if len(rewards):
            self.reward[failed] = rewards.mean()
            self.explored[failed] = True
        told = np.full(len(answered), np.nan)
        told[finite] = rewards
        return told
