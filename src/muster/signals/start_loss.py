"""The loss before training, reported together with the update: what fairness-aware aggregation weights by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.signals.losses import mean_loss
from muster.training.context import ClientContext


@signals.register("start_loss")
@dataclass(frozen=True)
class StartLoss(Signal):
    """Mean loss of the global model on all local data, from a client that trains on it."""

    name: ClassVar[str] = "start_loss"
    discloses: ClassVar[str] = "how badly the global model fits the client's data (one number)"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True
    uses_model: ClassVar[bool] = True
    ranks: ClassVar[bool] = True

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        trained = torch.empty(client.spec.size)
        client.model.store(trained)
        client.model.load(client.origin)
        loss = mean_loss(client.model.module, client.features, client.labels, client.objective)
        # Other signals of the same report look at the trained model.
        client.model.load(trained)
        return np.array([loss])
