"""A window slides over a random order of all clients (SimAgg, Khan et al., 2021; used by SimProx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Ints
from muster.core.component import Population, state
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors


@selectors.register("sliding-window")
@dataclass
class SlidingWindow(Selector):
    """Random but exhaustive: every client has one turn in each cycle over a new random order."""

    clients_per_round: int
    #: What fills the last window of a cycle: the first of the same order ("wrap"), nothing ("short"), or the first
    #: of the next order, whose turn is then over ("carry").
    pad: Literal["wrap", "short", "carry"] = "wrap"
    #: Shuffle the first order too; without it the first cycle goes by id.
    shuffle_first: bool = True

    order: Ints = state(lambda: np.zeros(0, dtype=np.int64))
    position: int = state(int)
    cycles: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def round(self, fed: View) -> Plan:
        if len(fed.available) <= self.clients_per_round:
            yield Train(fed.available)
            return
        reachable = np.zeros(fed.clients, dtype=np.bool_)
        reachable[fed.available] = True
        if not reachable[self.order[self.position :]].any():
            self._start_cycle(fed)
        # Clients that are out of reach are skipped and wait for the next cycle.
        usable = self.position + np.flatnonzero(reachable[self.order[self.position :]])
        turn = usable[: self.clients_per_round]
        window = self.order[turn]
        self.position = int(turn[-1]) + 1 if len(turn) == self.clients_per_round else len(self.order)
        missing = self.clients_per_round - len(window)
        if missing and self.pad != "short":
            reachable[window] = False
            if self.pad == "carry":
                self._start_cycle(fed)
            filling = self.order[reachable[self.order]][:missing]
            if self.pad == "carry":
                self.order = self.order[~np.isin(self.order, filling)]
            window = np.concatenate([window, filling])
        yield Train(np.sort(window))

    def _start_cycle(self, fed: View) -> None:
        shuffled = self.cycles > 0 or self.shuffle_first
        self.order = fed.rng.permutation(fed.clients) if shuffled else np.arange(fed.clients)
        self.position = 0
        self.cycles += 1
