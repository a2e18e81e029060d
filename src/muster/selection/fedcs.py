"""FedCS: as many clients as fit into a deadline (Nishio and Yonetani, 2019)."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.selection._ranking import lowest
from muster.selection.base import Ask, Plan, Selector, Train, View, selectors
from muster.signals.base import Signal
from muster.signals.device import DeviceTime

log = logging.getLogger(__name__)


def schedule(times: Floats, budget: float, most: int | None = None) -> Ints:
    """Positions of the clients that fit where uploads follow one another, in the order in which they upload.

    `times` has one row (receive, compute, send) per client. The model goes to all at once and takes as long as to
    the slowest chosen receiver; uploads follow one another; a client computes while others upload. Each step takes
    the client that adds least to the total, so no other fits when this one does not.
    """
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be positive numbers")
    down, compute, up = times.T
    chosen: list[int] = []
    # A client that takes too long on its own never fits.
    left = np.flatnonzero(down + (compute + up) < budget)
    distribution = elapsed = 0.0
    while len(left) and (most is None or len(chosen) < most):
        slowest = np.maximum(distribution, down[left])
        finished = np.maximum(elapsed, compute[left]) + up[left]
        best = int(np.argmin(slowest + finished))
        if slowest[best] + finished[best] >= budget:
            break
        chosen.append(int(left[best]))
        distribution, elapsed = float(slowest[best]), float(finished[best])
        left = np.delete(left, best)
    return np.array(chosen, dtype=np.int64)


def side_by_side(times: Floats, budget: float, most: int | None, rng: np.random.Generator) -> Ints:
    """Positions of the clients that fit where none waits for another's upload; the fastest, if not all may."""
    seconds = times.sum(axis=1)
    fitting = np.flatnonzero(seconds < budget)
    return fitting if most is None else fitting[lowest(seconds[fitting], most, rng)]


@selectors.register("fedcs")
@dataclass
class FedCS(Selector):
    """As many random candidates as can finish before a deadline."""

    #: Share of all clients that are asked for their times.
    candidates: float = 0.1
    #: Seconds that a round may take.
    deadline: float = 180.0
    #: Seconds of the round that selection and aggregation take.
    selection_time: float = 0.0
    aggregation_time: float = 0.0
    #: At most this many clients; None: as many as fit.
    clients_per_round: int | None = None
    #: "in turn": one client uploads at a time, as in a cell of a mobile network; "together": all at once, each at
    #: its own speed, as on the server's virtual clock.
    uploads: Literal["in turn", "together"] = "in turn"

    def check(self, population: Population) -> None:
        if not 0 < self.candidates <= 1:
            raise ConfigError(f"fedcs: candidates is {self.candidates}", expected="a share in (0, 1]")
        for name in ("selection_time", "aggregation_time"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"fedcs: {name} is {getattr(self, name)}", expected="0 or more seconds")
        if not self.budget > 0:
            raise ConfigError(
                "fedcs: selection_time and aggregation_time use up the deadline",
                expected=f"less than {self.deadline} seconds together",
            )
        if self.clients_per_round is not None and self.clients_per_round < 1:
            raise ConfigError(f"fedcs: clients_per_round is {self.clients_per_round}", expected="at least 1")

    def cautions(self, population: Population) -> list[str]:
        """None: `clients_per_round` is a limit here, and how many fit into the deadline varies by round."""
        return []

    @property
    def budget(self) -> float:
        return self.deadline - self.selection_time - self.aggregation_time

    def needs(self) -> tuple[Signal, ...]:
        return (DeviceTime(),)

    def round(self, fed: View) -> Plan:
        candidates = fed.sample(math.ceil(self.candidates * fed.clients - 1e-9))
        replies = yield Ask(candidates, self.needs())
        times = replies[DeviceTime.name]
        usable = (np.isfinite(times) & (times > 0)).all(axis=1)
        # In random order: chance decides which of equally fast clients goes first.
        lots = fed.rng.permutation(np.flatnonzero(usable))
        clients, times = replies.clients[lots], times[lots]
        fitting = clients[self._fitting(times, fed.rng)]
        if len(fitting):
            yield Train(np.sort(fitting))
            return
        log.warning("round %d: no client meets the deadline of %g s", fed.round + 1, self.deadline)
        cheapest = clients[[np.argmin(times.sum(axis=1))]] if len(clients) else fed.sample(1, candidates)
        yield Train(cheapest)

    def _fitting(self, times: Floats, rng: np.random.Generator) -> Ints:
        if self.uploads == "in turn":
            return schedule(times, self.budget, self.clients_per_round)
        return side_by_side(times, self.budget, self.clients_per_round, rng)
