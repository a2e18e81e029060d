"""How much local work is in an update: what FedNova divides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.signals.losses import only_after_training
from muster.training.context import ClientContext, Trainings


@signals.register("local_progress")
@dataclass(frozen=True)
class LocalProgress(Signal):
    """Local steps, each counted with the weight that its gradient has in the movement."""

    name: ClassVar[str] = "local_progress"
    discloses: ClassVar[str] = "how many steps the client trained (one number)"
    draws: ClassVar[bool] = False
    askable: ClassVar[bool] = False
    reportable: ClassVar[bool] = True

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        if client.outcome is None:
            raise only_after_training(self)
        return np.array([client.outcome.progress])

    def measure_trained(self, trainings: Trainings) -> Floats | None:
        return trainings.progress[:, None]
