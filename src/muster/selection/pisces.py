"""Pisces: asynchronous training with useful clients that are seldom stale (Jiang et al., 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._awaited import heard_of, none_awaited, sent_off, under_way
from muster.selection._ranking import highest
from muster.selection.base import Plan, Selector, Train, View, between, check_count, selectors
from muster.signals.base import Replies, Signal
from muster.signals.losses import SquaredLoss

#: Columns of what is remembered about answers: the round in which the client started, the client, its loss.
_ROUND, _CLIENT, _LOSS = range(3)


def utilities(sizes: Ints, losses: Floats, staleness: Floats, penalty: float) -> Floats:
    """|B| · √(mean squared loss) · (1 + τ̂)^−β, with the root mean square as `losses`."""
    return np.asarray(sizes * losses * (1.0 + staleness) ** -penalty)


def loss_outliers(losses: Floats, radius: float, neighbours: int) -> Bools:
    """Which losses DBSCAN calls noise: those farther than `radius` from every loss in a crowded place.

    A loss is in a crowded place when `neighbours` lie within `radius` of it, itself among them. On a line, sorting
    shows how many do, so nothing grows with the square of the number.
    """
    order = np.argsort(losses)
    ordered = losses[order]

    def within(points: Floats) -> Ints:
        least, most = ordered - radius, ordered + radius
        return np.searchsorted(points, most, side="right") - np.searchsorted(points, least, side="left")

    crowded = within(ordered) >= neighbours
    noise = np.empty(len(losses), dtype=np.bool_)
    noise[order] = ~crowded & (within(ordered[crowded]) == 0)
    return noise


@selectors.register("pisces")
@dataclass
class Pisces(Selector):
    """The most useful clients, less so the staler their answers; new ones explored, suspicious ones left out."""

    clients_per_round: int
    #: Exponent β of the penalty for staleness.
    staleness_penalty: float = 0.5
    #: A client's staleness is the mean over this many of its last answers.
    staleness_memory: int = 5
    #: Share ε of exploration: start, factor per round, end.
    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.3
    #: A client that has sent this many outlying losses is chosen only when no other is available; 0: none is
    #: suspected.
    credits: int = 5
    #: A loss is compared with those of clients that started in the same round, or fewer than this many before.
    compared_rounds: int = 5
    #: With fewer losses than that, no client is judged.
    compared_least: int = 20
    #: Ordinary losses lie within this radius of one that has this many neighbours, itself included.
    radius: float = 0.5
    neighbours: int = 10

    #: Root mean square of the samples' losses.
    loss: Floats = state(lambda: np.zeros(0))
    explored: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    #: clients × memory: staleness of the last answers, the latest first; NaN: there were fewer.
    staleness: Vector = state(lambda: np.zeros((0, 0), dtype=np.float32))
    #: Outliers that each client has sent.
    offences: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    #: Clients under way, with a note of the round in which each started.
    awaited: Floats = state(none_awaited)
    #: Answers to compare with, as rows (round, client, loss).
    recent: Floats = state(lambda: np.zeros((0, 3)))
    epsilon: float | None = state(lambda: None)
    #: The last round in which this method was asked.
    last: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        ranges = {
            "staleness_penalty": (0, math.inf),
            "staleness_memory": (1, math.inf),
            "exploration": (0, 1),
            "exploration_decay": (0, 1),
            "exploration_min": (0, 1),
            "credits": (0, math.inf),
            "compared_rounds": (1, math.inf),
            "compared_least": (1, math.inf),
            "radius": (0, math.inf),
            "neighbours": (1, math.inf),
        }
        for key, (least, most) in ranges.items():
            if not least <= getattr(self, key) <= most:
                raise ConfigError(f"pisces: {key} is {getattr(self, key)}", expected=between(least, most))
        if not population.has_devices:
            raise ConfigError(
                "pisces: it avoids clients whose answers are stale, and without devices clients take no time",
                fix="add a section [devices], for example method = 'phones', and [pacing] with method = 'pisces'",
            )

    def cautions(self, population: Population) -> list[str]:
        if self.exploration * self.exploration_decay == self.exploration_min == 0:
            return [
                "pisces tries no new clients here: without exploration only those of the first round are chosen "
                "again, as long as they are there; set exploration_min above 0"
            ]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (SquaredLoss(),)

    def round(self, fed: View) -> Plan:
        self._welcome(fed)
        self._learn(fed)
        clients = self._choose(fed)
        self.awaited = sent_off(self.awaited, clients, fed.history, fed.round)
        replies = yield Train(clients, report=self.needs())
        if fed.late_answers:
            self._learn(fed, replies)
        else:
            self._take_over(fed, replies.clients, replies[SquaredLoss.name], np.full(len(replies), fed.round))
            self.awaited = none_awaited()

    def _welcome(self, fed: View) -> None:
        clients = fed.clients
        if not self.staleness.shape[1]:
            self.staleness = np.zeros((0, self.staleness_memory), dtype=np.float32)
        self.loss = grown(self.loss, clients, 0.0)
        self.explored = grown(self.explored, clients, False)
        self.staleness = grown(self.staleness, clients, np.nan)
        self.offences = grown(self.offences, clients, 0)
        if self.epsilon is None:
            self.epsilon = self.exploration
        elif fed.round > self.last:  # however many cohorts a round has
            self.epsilon = max(self.epsilon * self.exploration_decay, self.exploration_min)
        self.last = fed.round

    # --- choice ------------------------------------------------------------------------------------------

    def _choose(self, fed: View) -> Ints:
        assert self.epsilon is not None
        trusted = fed.available
        if self.credits:
            trusted = trusted[self.offences[trusted] < self.credits]
        if not len(trusted):
            # If no client started, no time would pass, and no other would ever come.
            trusted = fed.available
        old, new = trusted[self.explored[trusted]], trusted[~self.explored[trusted]]
        explore = min(len(new), int(fed.rng.binomial(self.clients_per_round, self.epsilon)))
        exploit = min(len(old), self.clients_per_round - explore)
        best = old[highest(self._scores(fed, old), exploit, fed.rng)]
        return np.sort(np.concatenate([best, fed.sample(self.clients_per_round - exploit, new)]))

    def _scores(self, fed: View, clients: Ints) -> Floats:
        rows = self.staleness[clients]
        known = ~np.isnan(rows)
        mean = np.where(known, rows, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return utilities(fed.sizes[clients], self.loss[clients], mean, self.staleness_penalty)

    # --- answers -----------------------------------------------------------------------------------------

    def _learn(self, fed: View, replies: Replies | None = None) -> None:
        """Check on those under way; `replies`: of those that have just answered."""
        news = heard_of(self.awaited, fed.history, fed.available if replies is None else None)
        self.awaited = news.awaited
        name, clients = SquaredLoss.name, news.answered
        squares = fed.history.last(name)[clients]
        if replies is not None and name in replies.values:
            # The history keeps the last number; what came just now may be none.
            own = np.isin(clients, replies.clients)
            squares[own] = replies[name][np.searchsorted(replies.clients, clients[own])]
        self._take_over(fed, clients, squares, news.notes)

    def _take_over(self, fed: View, clients: Ints, squares: Floats, rounds: Floats) -> None:
        """What clients that started in these rounds have reported."""
        finite = np.isfinite(squares)
        self.explored[clients] = finite
        self.staleness[clients, 1:] = self.staleness[clients, :-1]
        self.staleness[clients, 0] = fed.history.staleness[clients]
        known, losses = clients[finite], np.sqrt(np.maximum(squares[finite], 0.0))
        self.loss[known] = losses
        if self.credits and len(known):
            self._judge(np.column_stack([rounds[finite], known, losses]))

    def _judge(self, answers: Floats) -> None:
        """Count an offence for each of these answers whose loss is an outlier."""
        self.recent = np.concatenate([self.recent, answers])
        for start in np.unique(answers[:, _ROUND]):
            pool = self._comparable(start)
            if len(pool) < self.compared_least:
                continue
            odd = pool[loss_outliers(pool[:, _LOSS], self.radius, self.neighbours)][:, _CLIENT]
            own = answers[answers[:, _ROUND] == start, _CLIENT]
            self.offences[np.intersect1d(odd, own).astype(np.int64)] += 1
        # What no client that is still under way can be compared with.
        _, rounds = under_way(self.awaited)
        oldest = min(rounds.min(initial=np.inf), answers[:, _ROUND].max())
        self.recent = self.recent[self.recent[:, _ROUND] > oldest - self.compared_rounds]

    def _comparable(self, start: float) -> Floats:
        """Recent answers by clients that started not long before `start`: only the latest of each client."""
        age = start - self.recent[:, _ROUND]
        pool = self.recent[(age >= 0) & (age < self.compared_rounds)]
        pool = pool[np.argsort(-pool[:, _ROUND], kind="stable")]
        _, first = np.unique(pool[:, _CLIENT], return_index=True)
        return pool[first]
