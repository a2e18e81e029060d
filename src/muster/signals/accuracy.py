"""How often the global model is right on a client's data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.signals._evaluation import EVALUATION_BATCH
from muster.signals.base import Signal, signals
from muster.training.context import ClientContext


@signals.register("accuracy")
@dataclass(frozen=True)
class Accuracy(Signal):
    """The share of all local samples that the global model classifies correctly."""

    name: ClassVar[str] = "accuracy"
    discloses: ClassVar[str] = "how often the global model is right on the client's data (one number)"
    draws: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True
    uses_model: ClassVar[bool] = True

    @torch.no_grad()
    def measure(self, client: ClientContext) -> Floats:
        module, right = client.model.module.eval(), 0
        for start in range(0, client.size, EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            right += int((module(client.features[part]).argmax(dim=1) == client.labels[part]).sum())
        return np.array([right / client.size])
