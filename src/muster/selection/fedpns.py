"""FedPNS: clients whose updates work against the others are left out, and selected less (Wu and Wang, 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection._clustering import gram
from muster.selection._vectors import as_matrix
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Replies, Signal, signals


@selectors.register("fedpns")
@dataclass
class FedPNS(Selector):
    """Leave out updates that work against the others, and draw those clients less often."""

    clients_per_round: int
    #: P_min: at least this many updates are kept; None: 70 % of the clients per round.
    min_kept: int | None = None
    #: Aggregate the updates that were kept, or all.
    aggregate: Literal["kept", "all"] = "kept"
    #: α and β: a flagged client loses the share (flags/selections + β)^α of its probability …
    alpha: float = 2.0
    beta: float = 0.7
    #: … but not more than this share.
    cap: float = 0.99
    #: Count every update alike; false leaves the weights to the aggregator.
    equal_weights: bool = True

    _probabilities: Floats = state(lambda: np.zeros(0))
    _selections: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    _flags: Ints = state(lambda: np.zeros(0, dtype=np.int64))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.min_kept is not None and not 1 <= self.min_kept <= self.clients_per_round:
            raise ConfigError(f"FedPNS: min_kept is {self.min_kept}", expected="1 to clients_per_round")
        if not (0 < self.cap <= 1 and self.alpha >= 0 and self.beta >= 0):
            raise ConfigError(
                f"FedPNS: alpha is {self.alpha}, beta is {self.beta}, cap is {self.cap}",
                expected="alpha and beta at least 0, cap above 0 and at most 1",
            )

    @property
    def _least(self) -> int:
        return self.min_kept or max(1, math.ceil(0.7 * self.clients_per_round))

    def cautions(self, population: Population) -> list[str]:
        if self._least < self.clients_per_round:
            return []
        return [
            f"fedpns is random selection here: it keeps at least {self._least} of {self.clients_per_round} "
            "updates, so it never leaves one out; choose more clients per round, or a smaller min_kept"
        ]

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("mean_gradient", {}),)

    def gives_weights(self) -> bool:
        return self.equal_weights

    def round(self, fed: View) -> Plan:
        (report,) = self.needs()
        self._make_room(fed.clients)
        chosen = fed.weighted_sample(self.clients_per_round, self._probabilities[fed.available])
        self._selections[chosen] += 1
        # Server and selector judge the same replies: one seed, so that ties end alike.
        kept = partial(self._kept, seed=int(fed.rng.integers(2**63)))
        replies = yield Train(
            chosen,
            report=(report,),
            keep=kept if self.aggregate == "kept" else None,
            weights=np.ones(len(chosen)) if self.equal_weights else None,
        )
        # A combination of selectors may have had others train instead.
        self._selections[np.setdiff1d(replies.clients, chosen)] += 1
        flagged = replies.clients[~kept(replies)]
        self._flags[flagged] += 1
        rates = self._flags[flagged] / self._selections[flagged]
        losses = np.minimum((rates + self.beta) ** self.alpha, self.cap)
        self._probabilities = shifted(self._probabilities, flagged, losses)

    def _make_room(self, clients: int) -> None:
        """Newcomers are as likely as the average client."""
        before = len(self._probabilities)
        self._probabilities = grown(self._probabilities * (before / clients), clients, 1 / clients)
        self._selections = grown(self._selections, clients, 0)
        self._flags = grown(self._flags, clients, 0)

    def _kept(self, replies: Replies, seed: int) -> Bools:
        """Which updates work together; ties broken at random. NaN is left to the guard."""
        (report,) = self.needs()
        rows = as_matrix(replies[report.name])
        finite = np.flatnonzero(np.isfinite(rows).all(axis=1))
        finite = np.random.default_rng(seed).permutation(finite)
        kept = np.ones(len(replies), dtype=np.bool_)
        kept[finite[opposed(rows[finite], self._least)]] = False
        return kept


def opposed(gradients: Floats, least: int) -> Ints:
    """Positions of the rows to leave out, in the order in which they are found.

    E(P) = Σ over P of the inner product of a row with the mean = ‖sum‖² / |P|. While more than `least` rows are
    left, the one without which E is largest goes, if E is larger without it.
    """
    products = gram(gradients)
    left = np.arange(len(gradients))
    removed: list[int] = []
    while len(left) > max(least, 1):
        agreement, without = expectations(products[np.ix_(left, left)])
        worst = int(np.argmax(without))
        if without[worst] <= agreement:
            break
        removed.append(int(left[worst]))
        left = np.delete(left, worst)
    return np.array(removed, dtype=np.int64)


def expectations(products: Floats) -> tuple[float, Floats]:
    """E of all rows, and E without each of them, from the rows' inner products."""
    rows = len(products)
    total = float(products.sum())
    without = total - 2 * products.sum(axis=1) + np.diag(products)
    return total / rows, without / (rows - 1)


def shifted(probabilities: Floats, flagged: Ints, losses: Floats) -> Floats:
    """Probabilities after the flagged clients have given the share `losses` of theirs to all others, equally."""
    others = len(probabilities) - len(flagged)
    if others == 0:
        return probabilities
    given = probabilities[flagged] * losses
    result: Floats = probabilities + given.sum() / others
    result[flagged] = probabilities[flagged] - given
    return result
