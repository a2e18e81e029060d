"""How long a client's device takes, where devices are modelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.training.context import ClientContext

NO_DEVICES = "the run has no model of client devices: add a section [devices]"


@signals.register("device_time")
@dataclass(frozen=True)
class DeviceTime(Signal):
    """Seconds that a client needs to receive the model, to train and to send the update."""

    name: ClassVar[str] = "device_time"
    discloses: ClassVar[str] = "the speed of the client's device and connection (three numbers)"
    draws: ClassVar[bool] = False
    reportable: ClassVar[bool] = True

    def width(self, population: Population) -> int:
        return 3

    def unavailable(self, population: Population) -> str | None:
        return None if population.has_devices else NO_DEVICES

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        if client.device_times is None:
            raise ConfigError(f"the signal '{self.name}' cannot be measured: {NO_DEVICES}")
        return np.asarray(client.device_times, dtype=np.float64)
