"""Real phones: how fast 952 models compute, and how fast 19 people's connections were.

The tables are ours, derived from public ones by `tools/device_tables.py`; sources and licences are in their
headers and in the file NOTICE.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError, meant
from muster.world import draws
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

#: A forward pass of MobileNetV2 on one picture of 224 × 224, which we assume the published times refer to
#: (ours: the sources say only "inference"). A multiplication and its addition are two, as PyTorch counts.
REFERENCE_FLOPS = 601_548_544.0
KILOBIT = 1000 / 8
#: Of more clients than these, devices are drawn when they are looked at.
MANY = 1 << 20


@dataclass(frozen=True)
class Tables:
    """What is shipped: names and times of phones, mean and spread of connections."""

    phones: tuple[str, ...]
    #: Milliseconds of an inference, by phone.
    milliseconds: Floats
    #: Connections × (mean down, spread down, mean up, spread up), in kbit/s.
    networks: Floats


@cache
def tables() -> Tables:
    phones, networks = _rows("phones.csv"), _rows("networks.csv")
    return Tables(
        tuple(row[0] for row in phones),
        np.array([float(row[1]) for row in phones]),
        np.array([[float(cell) for cell in row] for row in networks]),
    )


def _rows(name: str) -> list[list[str]]:
    text = (resources.files("muster.world.devices") / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.reader(lines))[1:]


@device_models.register("phones")
@dataclass(frozen=True)
class Phones(DeviceModel):
    """Real phones and connections: each client has one of 952 phones and one of 19 connections.

    Computing takes samples × FLOPs of the model ÷ FLOP/s of the phone: a larger model takes longer.
    """

    #: Names of the phones to draw from; none: all.
    only: tuple[str, ...] = ()
    #: "steady": a connection always has its mean speed; "varying": every exchange draws one, with the spread that
    #: was measured.
    connection: Literal["steady", "varying"] = "steady"
    #: Standard deviation of the logarithm of the computing time from one exchange to the next.
    jitter: float = 0.0
    #: What the published times of the phones measure: FLOPs of one forward pass.
    reference_flops: float = REFERENCE_FLOPS
    #: FLOPs of one training sample, forward and backward; None: counted.
    flops_per_sample: float | None = None

    def draw(self, clients: int, seed: int, flops: CountFlops) -> Devices:
        check_positive("jitter", self.jitter, or_zero=True)
        known = tables()
        phones = self._phones(known)
        rates = training_speeds(known.milliseconds[phones], self.reference_flops, self.flops_per_sample, flops)
        phone = Drawn(clients, seed, len(phones), word=0)
        network = Drawn(clients, seed, len(known.networks), word=1)
        means, spreads = known.networks[:, [0, 2]], known.networks[:, [1, 3]]
        sigmas = np.sqrt(np.log1p((spreads / means) ** 2))
        # The median of the log-normal distribution with this mean and spread; without variation, the mean itself.
        speeds = KILOBIT * (means * np.exp(-(sigmas**2) / 2) if self.connection == "varying" else means)
        jitter = None
        if self.connection == "varying":
            down, up = (ByKind(sigmas[:, way], network) for way in (0, 1))
            jitter = Jitter(seed, (down, self.jitter, up))
        elif self.jitter:
            jitter = Jitter(seed, (0.0, self.jitter, 0.0))
        return Devices(ByKind(rates, phone), ByKind(speeds[:, 0], network), ByKind(speeds[:, 1], network), jitter)

    def _phones(self, known: Tables) -> list[int]:
        """The rows of the phones to draw from: some names have several, with different chips."""
        for name in self.only:
            if name not in known.phones:
                raise ConfigError(
                    f"unknown phone '{name}' in 'devices.only'",
                    expected=meant(name, set(known.phones)) or "a name in the table of phones",
                )
        return [row for row, name in enumerate(known.phones) if not self.only or name in self.only]


@dataclass(frozen=True)
class Drawn:
    """Which kind each client has, all equally likely, from its own stream (seed, "devices", client).

    Of very many clients most are never looked at: kinds are drawn when they are asked for, until a good part of
    all is asked for at once.
    """

    clients: int
    seed: int
    kinds: int
    #: Which word of the stream says it.
    word: int

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, who: Ints) -> npt.NDArray[np.unsignedinteger[Any]]:
        if self.clients <= MANY or 4 * len(who) > self.clients or "all" in vars(self):
            return self.all[who]
        return self._drawn(who)

    @cached_property
    def all(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Everybody's, in one or two bytes each."""
        kinds = np.empty(self.clients, dtype=np.min_scalar_type(self.kinds))
        for part in draws.slices(self.clients):
            kinds[part] = self._drawn(np.arange(part.start, part.stop))
        return kinds

    def _drawn(self, who: Ints) -> npt.NDArray[np.unsignedinteger[Any]]:
        own = draws.words(self.seed, "devices", clients=who, count=self.word + 1)[:, self.word]
        return (draws.uniform(own) * self.kinds).astype(np.min_scalar_type(self.kinds))
