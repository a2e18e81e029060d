"""A model of client devices: how fast they compute and how fast their connection is.

Only arrays with one entry a client. Durations that follow from it are virtual: nothing waits, and no decision
depends on a real clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError, nearest
from muster.core.randomness import generator
from muster.core.registry import build

MEGABYTE = 1e6


@dataclass(frozen=True)
class Devices:
    """Speed of every client's device and connection."""

    #: Training samples a second.
    speed: Floats
    #: Bytes a second from the server.
    down: Floats
    #: Bytes a second to the server.
    up: Floats

    def __len__(self) -> int:
        return len(self.speed)

    def times(
        self, clients: Ints, samples: npt.ArrayLike, bytes_down: npt.ArrayLike, bytes_up: npt.ArrayLike
    ) -> Floats:
        """Seconds to (receive, compute, send), one row for each of `clients`."""
        seconds = np.empty((len(clients), 3))
        seconds[:, 0] = np.asarray(bytes_down) / self.down[clients]
        seconds[:, 1] = np.asarray(samples) / self.speed[clients]
        seconds[:, 2] = np.asarray(bytes_up) / self.up[clients]
        return seconds


@dataclass(frozen=True)
class Lognormal:
    """Speeds that vary by a factor: the logarithm is normal, around a median, independent of each other."""

    #: Median training samples a second.
    samples_per_second: float = 500.0
    #: Median megabytes a second from and to the server.
    megabytes_down: float = 2.5
    megabytes_up: float = 0.75
    #: Standard deviation of the logarithm of the computing speed; 0: all alike.
    compute_spread: float = 0.6
    #: Standard deviation of the logarithm of the connection's speed, up and down.
    network_spread: float = 0.8

    def check(self) -> None:
        for key, value in asdict(self).items():
            spread = key.endswith("_spread")
            if not (0 < value < np.inf or (spread and value == 0)):
                expected = "zero or a positive number" if spread else "a positive number"
                raise ConfigError(f"bad value for 'devices.{key}': {value}", expected=expected)

    def draw(self, clients: int, seed: int) -> Devices:
        """Devices for `clients` clients. With more clients, the first ones keep their devices."""
        self.check()

        def speeds(part: str, median: float, spread: float) -> Floats:
            return median * np.exp(spread * generator(seed, f"devices {part}").standard_normal(clients))

        return Devices(
            speed=speeds("compute", self.samples_per_second, self.compute_spread),
            down=speeds("down", self.megabytes_down * MEGABYTE, self.network_spread),
            up=speeds("up", self.megabytes_up * MEGABYTE, self.network_spread),
        )


DEFAULT_MODEL = "lognormal"
MODELS = {"lognormal": Lognormal}


def model(name: str) -> type[Lognormal]:
    """The model of devices that is called so."""
    if name not in MODELS:
        raise ConfigError(f"unknown device model '{name}'", expected=nearest(str(name), MODELS))
    return MODELS[name]


def from_config(options: Mapping[str, Any], clients: int, seed: int) -> Devices:
    """The devices that a section `[devices] model = "…"` describes."""
    rest = dict(options)
    return build(model(rest.pop("model", DEFAULT_MODEL)), rest, "devices").draw(clients, seed)
