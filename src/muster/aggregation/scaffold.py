"""SCAFFOLD, the server's part: control variates against client drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.aggregation._blocks import accumulate
from muster.aggregation.base import Aggregated, StaleUse, aggregators, among_more
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats, State, Vector
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.training.scaffold import CONTROL_CHANGE
from muster.updates.table import Updates


@aggregators.register("scaffold")
@dataclass
class Scaffold(FedAvg):
    """Mean of the movements of clients that correct their drift with control variates.

    The server's control variate is the mean of all clients' variates, those that have never taken part counted as
    zero. It travels to the clients with the parameters.
    """

    weights: Literal["samples", "equal"] = "equal"

    control: Floats = state(lambda: np.zeros(0))
    #: Over how many clients the control variate is a mean.
    clients: int = state(int)

    #: A client has one control variate, however often it was drawn.
    honours_multiplicity: ClassVar[bool] = False
    requires_algorithm: ClassVar[tuple[str, ...] | None] = ("scaffold",)
    stale: ClassVar[StaleUse | None] = None
    not_stale: ClassVar[str] = "its control variate and the clients' must move together"

    def prepare(self, population: Population) -> None:
        self.control = among_more(self.control, self.clients, population.clients)
        self.clients = population.clients

    def broadcast(self, spec: ParameterSpec) -> Vector:
        flat = np.zeros(spec.size, dtype=np.float32)
        flat[: len(self.control)] = self.control
        return flat

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        self._change = np.zeros(spec.trainable.stop)

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        if CONTROL_CHANGE not in updates.extra:
            raise ConfigError(
                f"client {updates.clients[0]} sent no control variate",
                fix="set [algorithm] method = 'scaffold' together with [aggregation] method = 'scaffold'",
            )
        # The client renews its variate only with an update that counts: the server must do the same.
        counts = (weights > 0).astype(np.float64)
        accumulate(self._change, updates.extra[CONTROL_CHANGE][:, self._spec.trainable], counts)

    def finish(self) -> Aggregated:
        result = super().finish()
        change = self._change / self.clients
        self.control = change if len(self.control) == 0 else self.control + change
        return result

    def load_state_dict(self, values: State) -> None:
        super().load_state_dict({"clients": 0, **values})  # older checkpoints do not say
