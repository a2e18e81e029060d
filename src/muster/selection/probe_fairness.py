"""Probe + fairness: the first mini-batches show which clients would move the model, fairness which have waited.

De Cesare, Cappellino, Bevilacqua: Probing and diversity-aware client selection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import softmax

from muster.core.arrays import Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.core.sampling import weighted_sample
from muster.selection._scaling import min_max
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal
from muster.signals.probe import ProbeNorm

#: Parts of few participations and of a long wait in the fairness score.
FEW, LONG = 0.6, 0.4
#: The round that stands for "never": the released code's sentinel.
NEVER = -999_999


@selectors.register("probe-fairness")
@dataclass
class ProbeFairness(Selector):
    """Blend of a short probe's movement and of fairness, with forced turns for clients that wait long."""

    clients_per_round: int
    #: β: weight of fairness against the probe.
    beta: float = 0.3
    #: ε: share of the slots that are drawn by softmax instead of taken from the top.
    epsilon: float = 0.05
    temperature: float = 0.7
    #: Candidates that are probed, as a multiple of `clients_per_round`.
    pool_factor: float = 2.0
    #: Rounds after which a waiting candidate is forced in; None: a quarter of all rounds.
    gap: int | None = None
    #: "joined": a client's wait starts when it joins; "never": it has waited forever (as in the released code).
    init_last: Literal["joined", "never"] = "joined"
    #: Whether only probed candidates can be forced in, or all available clients.
    force_scope: Literal["pool", "all"] = "pool"
    #: How many slots ε gives: rounded to the nearest integer (half to even), or up.
    rounding: Literal["nearest", "ceil"] = "nearest"
    probe_batches: int = 2
    probe_steps: int = 1
    #: How much of the local training the probe replaces: its mini-batches, or an epoch (the released code's).
    credit: Literal["batches", "epoch"] = "batches"
    #: What the rest of the training starts with: a new optimiser (the released code's), or the probe's momentum.
    optimizer_state: Literal["fresh", "kept"] = "fresh"

    counts: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    #: The 1-based round of each client's last selection.
    last: Ints = state(lambda: np.zeros(0, dtype=np.int64))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        for name, value in {"beta": self.beta, "epsilon": self.epsilon}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"ProbeFairness: {name} is {value}", expected="0 to 1")
        if not self.temperature > 0:
            raise ConfigError(f"ProbeFairness: temperature is {self.temperature}", expected="a positive number")
        if not self.pool_factor >= 1:
            raise ConfigError(f"ProbeFairness: pool_factor is {self.pool_factor}", expected="at least 1")
        if self.gap is not None and self.gap < 1:
            raise ConfigError(f"ProbeFairness: gap is {self.gap}", expected="at least 1 round")
        if self.probe_batches < 1 or self.probe_steps < 1:
            raise ConfigError(
                f"ProbeFairness: probe_batches is {self.probe_batches}, probe_steps is {self.probe_steps}",
                expected="both at least 1",
            )

    def cautions(self, population: Population) -> list[str]:
        if math.ceil(self.pool_factor * self.clients_per_round) <= self.clients_per_round:
            if self.force_scope == "pool" and self.clients_per_round < population.clients:
                return [
                    "probe-fairness selects at random here: as many clients are probed as are chosen; set a "
                    "larger pool_factor"
                ]
        elif self.beta == 1:
            return ["probe-fairness makes no use of its probes here: with beta = 1 only fairness counts"]
        elif self.beta == 0:
            return ["probe-fairness makes no use of fairness here: with beta = 0 only probes count"]
        elif self._gap(population.rounds) == 1 and not explore_slots(
            self.epsilon, self.clients_per_round, self.rounding
        ):
            why = "gap = 1" if self.gap else f"gap = 1, a quarter of {population.rounds} rounds"
            return [
                f"probe-fairness makes no use of its probes here: with {why}, whoever has waited longest is "
                "forced in; set a larger gap"
            ]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (
            ProbeNorm(
                batches=self.probe_batches,
                steps=self.probe_steps,
                credit=self.credit,
                optimizer_state=self.optimizer_state,
            ),
        )

    def depends_on_length(self) -> str:
        return (
            ""
            if self.gap
            else "probe-fairness lets no client wait for a quarter of the rounds (unless gap is set)"
        )

    def round(self, fed: View) -> Plan:
        self.counts = grown(self.counts, fed.clients, 0)
        self.last = grown(self.last, fed.clients, NEVER if self.init_last == "never" else fed.round)
        now = fed.round + 1
        pool = fed.sample(math.ceil(self.pool_factor * self.clients_per_round))
        replies = yield Ask(pool, self.needs())
        norms = np.full(len(pool), np.nan)
        norms[np.searchsorted(pool, replies.clients)] = replies["probe_norm"]
        scores = blend(norms, self.counts[pool], self.last[pool], now, self.beta)
        clients = self._choose(fed, pool, scores, now)
        self.counts[clients] += 1
        self.last[clients] = now
        yield Train(clients)

    def _choose(self, fed: View, pool: Ints, scores: Floats, now: int) -> Ints:
        count = min(self.clients_per_round, len(fed.available))
        # In random order, ties (of waits or of scores) that go by position are random.
        lots = fed.rng.permutation(len(pool))
        pool, scores = pool[lots], scores[lots]
        explore = explore_slots(self.epsilon, count, self.rounding)
        waiting = pool if self.force_scope == "pool" else fed.rng.permutation(fed.available)
        starved = self._starved(waiting, now, self._gap(fed.rounds))[: count - explore]
        left = ~np.isin(pool, starved)
        pool, scores = pool[left], scores[left]
        order = np.argsort(-scores, kind="stable")
        top = order[: count - explore - len(starved)]
        rest = order[len(top) :]
        weights = softmax(scores[rest] / self.temperature) if len(rest) else np.empty(0)
        drawn = rest[weighted_sample(weights, count - len(starved) - len(top), fed.rng)]
        return np.sort(np.concatenate([starved, pool[top], pool[drawn]]))

    def _gap(self, rounds: int) -> int:
        return self.gap or max(1, rounds // 4)

    def _starved(self, clients: Ints, now: int, gap: int) -> Ints:
        """Those that have waited for `gap` rounds or more, longest wait first, of equal waits the first ones."""
        clients = clients[now - self.last[clients] >= gap]
        return clients[np.argsort(self.last[clients], kind="stable")]


def blend(probe_norms: Floats, counts: Ints, last_selected: Ints, round: int, beta: float) -> Floats:
    """(1 − β) · probe + β · fairness for every candidate, both scaled to [0, 1] over the candidates.

    Fairness is 0.6 · scaled 1/(1 + count) + 0.4 · scaled (round − last selection), scaled again. `round` counts
    from 1. A probe norm that is not a number counts as the smallest.
    """
    probe = min_max(np.asarray(probe_norms, dtype=np.float64))
    few = min_max(1 / (1 + np.asarray(counts, dtype=np.float64)))
    waited = min_max(round - np.asarray(last_selected, dtype=np.float64))
    return np.asarray((1 - beta) * probe + beta * min_max(FEW * few + LONG * waited))


def explore_slots(epsilon: float, count: int, rounding: Literal["nearest", "ceil"] = "nearest") -> int:
    """How many of `count` slots are explored: never all of them."""
    slots = round(epsilon * count) if rounding == "nearest" else math.ceil(epsilon * count - 1e-9)
    return max(0, min(slots, count - 1))
