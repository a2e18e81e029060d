"""CA²FL: buffered asynchrony, calibrated with every client's last update (Wang et al., ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import accumulate, combination
from muster.aggregation.base import Aggregated, Aggregator, StaleUse, aggregators
from muster.core.arrays import Floats, State, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.clientstate import ClientStore
from muster.updates.table import Updates

_LAST = "last_update"


@aggregators.register("ca2fl")
@dataclass
class CA2FL(Aggregator):
    """The mean of all clients' last updates, moved by what the answers in the buffer have changed in them.

    v = h̄ + mean over the buffer of (Δ_i − h_i), with h_i the last update of client i that was used (zero before)
    and h̄ the mean of the h_i of all clients of the federation; w ← w + η v, then h_i ← Δ_i. So clients that answer
    rarely keep their influence.
    """

    #: Memory for the clients' last updates, before they go to disk.
    memory_limit_mb: int = 1024

    #: A client has one last update, however often it was drawn.
    honours_multiplicity: ClassVar[bool] = False
    #: The calibration is unbiased for equal weights only.
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"
    keeps_updates: ClassVar[bool] = True

    _last: ClientStore = dataclass_field(init=False, repr=False, compare=False, default_factory=ClientStore)
    #: Σ h_i. Kept, because adding up all rows again would cost clients × parameters in every step.
    _total: Floats = dataclass_field(init=False, repr=False, compare=False, default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self._last.memory_limit = self.memory_limit_mb * 2**20

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("memory_limit_mb", self.memory_limit_mb >= 0, "zero or a positive number")

    def prepare(self, population: Population) -> None:
        self._population = population.clients

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        count, trainable = len(updates), spec.trainable
        step = combination(updates.movements[:, spec.averaged], np.ones(count))
        change = step[trainable] - self._remembered(updates, trainable)
        step /= count
        total = self._total if len(self._total) else np.zeros_like(change)
        step[trainable] = total / self._population + change / count
        result = self.moved(current, step, spec, updates, np.full(count, 1 / count))
        for row, client in enumerate(updates.clients.tolist()):
            self._last.put(_LAST, client, updates.movements[row, trainable])
        self._total = total + change
        return result

    def _remembered(self, updates: Updates, trainable: slice) -> Floats:
        """The sum of these clients' last updates."""
        total, last = np.zeros(trainable.stop), np.empty(trainable.stop, dtype=np.float32)
        for client in updates.clients.tolist():
            if self._last.get(_LAST, client, out=last) is not None:
                accumulate(total, last[None], np.ones(1))
        return total

    def state_dict(self) -> State:
        return {"last_updates": self._last.state_dict(), "total": self._total.copy()}

    def load_state_dict(self, values: State) -> None:
        self._last.load_state_dict(values["last_updates"])
        self._total = values["total"].copy()
