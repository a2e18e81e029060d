"""Power-of-Choice: of a few random candidates, those with the highest loss (Cho, Wang and Joshi, 2022)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.selection._ranking import highest
from muster.selection.base import Ask, Plan, Request, Selector, Train, View, check_count, selectors
from muster.signals.base import Replies, Signal
from muster.signals.losses import BatchLoss, Loss, TrainLoss


@selectors.register("power-of-choice")
@dataclass
class PowerOfChoice(Selector):
    """The clients with the highest loss among random candidates."""

    clients_per_round: int
    #: pow-d asks for the loss on all data, cpow-d for that of one mini-batch, rpow-d asks no one and goes by the
    #: loss of each client's last training.
    variant: Literal["pow-d", "cpow-d", "rpow-d"] = "pow-d"
    #: Candidates; None: twice clients_per_round, "all": every client. Never fewer than clients_per_round.
    d: int | Literal["all"] | None = None
    #: cpow-d: samples in the mini-batch; None: as in training.
    batch: int | None = None
    #: All chosen clients count alike in the aggregation; otherwise the aggregation weights them itself.
    equal_weights: bool = True

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if isinstance(self.d, int) and not 1 <= self.d <= population.clients:
            raise ConfigError(
                f"power-of-choice: d is {self.d}", expected=f"1 to {population.clients} candidates, or 'all'"
            )
        if self.batch is not None and self.batch < 1:
            raise ConfigError(f"power-of-choice: batch is {self.batch}", expected="at least 1 sample")

    def gives_weights(self) -> bool:
        return self.equal_weights

    def cautions(self, population: Population) -> list[str]:
        candidates, everybody = self.candidates(population.clients), population.clients
        if candidates <= self.clients_per_round:
            return [
                f"power-of-choice is size-weighted sampling here: all {self.clients_per_round} candidates are "
                "chosen, whatever their losses; set d to more than clients_per_round"
            ]
        # With "all" that is what was asked for.
        if candidates >= everybody > self.clients_per_round and self.d != "all" and self.variant != "cpow-d":
            return [f"power-of-choice is high-loss here: all {everybody} clients are candidates; set a smaller d"]
        return super().cautions(population)

    def candidates(self, everybody: int) -> int:
        """How many of this many clients are candidates."""
        match self.d:
            case "all":
                return everybody
            case None:
                return 2 * self.clients_per_round
            case d:
                return max(self.clients_per_round, d)

    @property
    def _signal(self) -> Signal:
        match self.variant:
            case "pow-d":
                return Loss()
            case "cpow-d":
                return BatchLoss(self.batch)
            case "rpow-d":
                return TrainLoss()

    def needs(self) -> tuple[Signal, ...]:
        return (self._signal,)

    def round(self, fed: View) -> Plan:
        sizes = fed.sizes[fed.available].astype(np.float64)
        candidates = fed.weighted_sample(self.candidates(len(sizes)), sizes)
        if self.variant == "rpow-d":
            losses = last_losses(fed, candidates)
            report: tuple[Signal, ...] = (self._signal,)
        else:
            losses = yield from answers(candidates, self._signal)
            report = ()
        clients = candidates[highest(losses, self.clients_per_round, fed.rng)]
        yield Train(clients, report=report, weights=np.ones(len(clients)) if self.equal_weights else None)


def answers(clients: Ints, signal: Signal) -> Generator[Request, Replies, Floats]:
    """Ask `clients` for a signal of one number; NaN for those that do not answer, or not with a number."""
    replies = (yield Ask(clients, (signal,))).finite(signal.name)
    values = np.full(len(clients), np.nan)
    values[np.searchsorted(clients, replies.clients)] = replies[signal.name]
    return values


def last_losses(fed: View, clients: Ints) -> Floats:
    """The loss of each client's last training: infinite for those that were never tried, so that they go first.

    A client that was tried without success (it did not answer, or was refused) is NaN until the others have
    trained more often, on average, than it has failed: it has another turn then, and broken clients do not take
    all places.
    """
    history = fed.history
    last = history.last(TrainLoss.name)
    turn = (history.failures == 0) | (history.failures < history.trainings.mean())
    return np.asarray(np.where(np.isnan(last) & (history.trainings == 0) & turn, np.inf, last)[clients])
