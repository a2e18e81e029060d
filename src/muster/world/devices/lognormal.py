"""Speeds that vary by a factor around a given median: a model, not a measurement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats
from muster.core.randomness import generator
from muster.world.devices.base import CountFlops, DeviceModel, Devices, Jitter, check_positive, device_models

MEGABYTE = 1e6


@device_models.register("lognormal")
@dataclass(frozen=True)
class Lognormal(DeviceModel):
    """Independent log-normal speeds around given medians.

    Computing speed is given in samples: it does not depend on the model that is trained.
    """

    #: Median training samples per second.
    samples_per_second: float = 500.0
    #: Median megabytes a second from and to the server.
    megabytes_down: float = 2.5
    megabytes_up: float = 0.75
    #: Standard deviation of the logarithm of the computing speed; 0: all alike.
    compute_spread: float = 0.6
    #: Standard deviation of the logarithm of the connection's speed, up and down.
    network_spread: float = 0.8
    #: Standard deviation of the logarithm of durations from one exchange to the next.
    jitter: float = 0.0

    def draw(self, clients: int, seed: int, flops: CountFlops | None = None) -> Devices:
        for key, value in self.get_params().items():
            check_positive(key, value, or_zero=key.endswith("_spread") or key == "jitter")

        def speeds(part: str, median: float, spread: float) -> Floats:
            return median * np.exp(spread * generator(seed, f"devices {part}").standard_normal(clients))

        return Devices(
            speed=speeds("compute", self.samples_per_second, self.compute_spread),
            down=speeds("down", self.megabytes_down * MEGABYTE, self.network_spread),
            up=speeds("up", self.megabytes_up * MEGABYTE, self.network_spread),
            jitter=Jitter(seed, (self.jitter,) * 3) if self.jitter else None,
        )
