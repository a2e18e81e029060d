"""What a model of devices answers: how long each client takes to receive, to compute and to send.

Only arrays with one entry per client. Durations are virtual: nothing waits, and no decision depends on a real
clock.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from muster.core.arrays import Floats, Ints
from muster.core.component import Component
from muster.core.errors import ConfigError
from muster.core.registry import Registry
from muster.world import draws

#: Floating point operations that one sample costs in training, forward and backward; counted when first asked for.
CountFlops: TypeAlias = Callable[[], float]


class Kinds(Protocol):
    """Each client's kind of device: an array, or what answers like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, clients: Ints, /) -> npt.NDArray[np.unsignedinteger[Any]]: ...


@dataclass(frozen=True)
class ByKind:
    """One number per client, where many clients have the same kind of device: two bytes per client, not eight."""

    #: The number of each kind.
    table: Floats
    kinds: Kinds

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, clients: Ints) -> Floats:
        values: Floats = self.table[self.kinds[clients]]
        return values


Rates: TypeAlias = Floats | ByKind


@dataclass(frozen=True)
class Jitter:
    """How much the same client's durations vary from one exchange to the next: log-normal factors of median 1."""

    seed: int
    #: Standard deviations of the logarithm of the times to (receive, compute, send): for all clients, or for each.
    spreads: tuple[float | Rates, float | Rates, float | Rates]

    def factors(self, clients: Ints, round: int, exchange: int) -> Floats:
        """clients × 3, from streams of (round, exchange, client)."""
        drawn = draws.words(self.seed, "devices jitter", round, exchange, clients=clients)[:, :3]
        spreads = [s if isinstance(s, float) else s[clients] for s in self.spreads]
        exponents = ndtri(draws.uniform(drawn))
        for column, spread in enumerate(spreads):
            exponents[:, column] *= spread
        factors: Floats = np.exp(exponents)
        return factors


@dataclass(frozen=True)
class Devices:
    """Speed of every client's device and connection."""

    #: Training samples per second.
    speed: Rates
    #: Bytes a second from the server.
    down: Rates
    #: Bytes a second to the server.
    up: Rates
    #: None: the same work takes the same time in every exchange.
    jitter: Jitter | None = None

    def __len__(self) -> int:
        return len(self.speed)

    def times(
        self,
        clients: Ints,
        samples: npt.ArrayLike,
        bytes_down: npt.ArrayLike,
        bytes_up: npt.ArrayLike,
        *,
        exchange: tuple[int, int] | None = None,
    ) -> Floats:
        """Seconds to (receive, compute, send), one row for each of `clients`.

        `exchange`: (round, number of the exchange in it), for the durations that this exchange will have. Without
        it, and where devices do not vary: the median durations, which are all that can be known in advance.
        """
        seconds = np.empty((len(clients), 3))
        seconds[:, 0] = np.asarray(bytes_down) / self.down[clients]
        seconds[:, 1] = np.asarray(samples) / self.speed[clients]
        seconds[:, 2] = np.asarray(bytes_up) / self.up[clients]
        if self.jitter is not None and exchange is not None:
            seconds *= self.jitter.factors(clients, *exchange)
        return seconds


class DeviceModel(Component):
    """Gives devices to clients. Implementations are frozen dataclasses without state.

    >>> class Equal(DeviceModel):
    ...     '''100 samples per second and 1 MB/s, for every client.'''
    ...
    ...     def draw(self, clients, seed, flops):
    ...         return Devices(np.full(clients, 100.0), np.full(clients, 1e6), np.full(clients, 1e6))
    >>> devices = Equal().draw(3, seed=0, flops=lambda: 0.0)
    >>> devices.times(np.array([2]), samples=50, bytes_down=2e6, bytes_up=1e6).tolist()
    [[2.0, 0.5, 1.0]]
    """

    @abstractmethod
    def draw(self, clients: int, seed: int, flops: CountFlops) -> Devices:
        """Devices for `clients` clients. With more clients, the first ones keep their devices."""


device_models: Registry[DeviceModel] = Registry("device model", "muster.world.devices", "muster.devices")


def check_positive(key: str, value: float, *, or_zero: bool = False) -> None:
    """Refuse options that are not speeds (or, with `or_zero`, not spreads)."""
    if not (0 < value < np.inf or (or_zero and value == 0)):
        expected = "zero or a positive number" if or_zero else "a positive number"
        raise ConfigError(f"bad value for 'devices.{key}': {value}", expected=expected)


def training_speeds(milliseconds: Floats, reference: float, per_sample: float | None, count: CountFlops) -> Floats:
    """Training samples a second of devices on which an inference of `reference` FLOPs takes these milliseconds.

    `per_sample`: FLOPs of a training sample; None: counted.
    """
    check_positive("reference_flops", reference)
    if per_sample is not None:
        check_positive("flops_per_sample", per_sample)
    cost = count() if per_sample is None else per_sample
    speeds: Floats = reference / (milliseconds / 1000) / cost
    return speeds
