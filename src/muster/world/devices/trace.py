"""Devices from a file in FedScale's layout: how long a sample took each of them, how fast its connection was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.world import traces
from muster.world.devices.base import (
    ByKind,
    CountFlops,
    DeviceModel,
    Devices,
    Jitter,
    check_positive,
    device_models,
    training_speeds,
)
from muster.world.devices.phones import KILOBIT, REFERENCE_FLOPS


@device_models.register("trace")
@dataclass(frozen=True)
class Trace(DeviceModel):
    """The devices of a trace file (FedScale's layout): milliseconds of an inference, kbit/s of the connection."""

    #: A path, or the name of a file in the folder `devices` of the data.
    file: str
    #: Standard deviation of the logarithm of durations from one exchange to the next.
    jitter: float = 0.0
    #: What the file's times measure: FLOPs of one forward pass.
    reference_flops: float = REFERENCE_FLOPS
    #: FLOPs of one training sample, forward and backward; None: counted.
    flops_per_sample: float | None = None

    def draw(self, clients: int, seed: int, flops: CountFlops) -> Devices:
        check_positive("jitter", self.jitter, or_zero=True)
        milliseconds, kilobits = traces.speeds(self.file)
        rates = training_speeds(milliseconds, self.reference_flops, self.flops_per_sample, flops)
        kinds, _ = traces.devices_of(np.arange(clients), len(milliseconds), seed)
        connection = ByKind(kilobits * KILOBIT, kinds)
        return Devices(
            speed=ByKind(rates, kinds),
            down=connection,
            up=connection,
            jitter=Jitter(seed, (self.jitter,) * 3) if self.jitter else None,
        )
