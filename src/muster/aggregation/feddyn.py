"""FedDyn, the server's part: dynamic regularisation (Acar et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation.base import MeanAggregator, aggregators, among_more
from muster.core.arrays import Floats, State
from muster.core.component import Population, state
from muster.updates.table import Updates


@aggregators.register("feddyn")
@dataclass
class FedDyn(MeanAggregator):
    """Mean of dynamically regularised clients, corrected by the sum of all their movements so far.

    The paper's server state h appears only as h/α, so what is kept is −h/α: a sum of movements. The server needs
    no α.
    """

    drift: Floats = state(lambda: np.zeros(0))
    #: Over how many clients it is a mean.
    clients: int = state(int)

    #: A client has one dynamic regulariser, however often it was drawn.
    honours_multiplicity: ClassVar[bool] = False
    #: The fixed point is the optimum only for the weights that the sum of movements has, which are equal.
    honours_weights: ClassVar[bool] = False
    bounds_weights: ClassVar[bool] = False
    requires_algorithm: ClassVar[tuple[str, ...] | None] = ("feddyn",)
    not_stale: ClassVar[str] = "its sum of movements and the clients' regularisers must move together"

    def prepare(self, population: Population) -> None:
        self.drift = among_more(self.drift, self.clients, population.clients)
        self.clients = population.clients

    def weight(self, updates: Updates) -> Floats:
        return np.ones(len(updates))

    def step(self, mean: Floats) -> Floats:
        share = len(self._clients) / self.clients
        self.drift = share * mean if len(self.drift) == 0 else self.drift + share * mean
        mean += self.drift
        return mean

    def load_state_dict(self, values: State) -> None:
        super().load_state_dict({"clients": 0, **values})  # older checkpoints do not say
