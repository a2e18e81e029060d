"""The clock of a simulated federation: virtual seconds, who is there, and how long exchanges take.

Nothing waits for it and it never reads a real clock: moments follow from devices, sessions and seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints
from muster.core.errors import TrainingError
from muster.world.availability import Availability, TimedAvailability, Watch
from muster.world.devices import Devices


@dataclass(frozen=True)
class Errand:
    """What clients are asked for at one moment, before it is known how long that takes."""

    clients: Ints
    #: For each of them, or for all: samples to compute with, and bytes that travel there and back.
    samples: npt.ArrayLike
    down: npt.ArrayLike
    up: npt.ArrayLike
    #: The round, and how many exchanges came before in it.
    exchange: tuple[int, int]


@dataclass(frozen=True)
class Trips:
    """What becomes of requests that were sent at one moment, one entry per client."""

    #: When each client answers, or leaves without an answer.
    ends: Floats
    answers: Bools
    #: Seconds that each would need from the request to its answer.
    needed: Floats


class Clock:
    """Virtual time, and what is in it. It only goes forward."""

    def __init__(self, devices: Devices | None, availability: Availability | None, seed: int) -> None:
        self.devices, self.availability = devices, availability
        self.now = 0.0
        self._seed = seed
        self._watch: Watch | None = None
        if devices is not None and isinstance(availability, TimedAvailability):
            self._watch = Watch(availability, len(devices), seed)

    def advance(self, moment: float) -> None:
        """Move the clock forward, or leave it where it is."""
        self.now = max(self.now, moment)

    def reachable(self, round: int, clients: int) -> Bools | None:
        """Whether each client is there now, as a mask that may be changed; None: all are."""
        if self.availability is None:
            return None
        if isinstance(self.availability, TimedAvailability):
            return self._watching(clients).there(self.now)
        marks = np.zeros(clients, dtype=np.bool_)
        marks[self.availability.available(round, clients, self._seed)] = True
        return marks

    def trips(self, errand: Errand) -> Trips:
        """What becomes of a request that clients get now."""
        clients = errand.clients
        needed = np.zeros(len(clients))
        if self.devices is not None:
            times = self.devices.times(clients, errand.samples, errand.down, errand.up, exchange=errand.exchange)
            needed = times.sum(axis=1)
        stays = np.full(len(clients), np.inf)
        if isinstance(self.availability, TimedAvailability):
            watch = self._watch
            stays = (
                self.availability.until(self.now, clients, self._seed)
                if watch is None
                else watch.until(self.now, clients)
            )
        return Trips(self.now + np.minimum(needed, stays), needed <= stays, needed)

    def next_arrival(self, clients: int) -> float:
        """The first moment from now on at which a client is there."""
        if not isinstance(self.availability, TimedAvailability):
            return self.now
        moment = self._watching(clients).next_start(self.now)
        if not np.isfinite(moment):
            raise TrainingError(
                f"at {self.now:,.0f} virtual seconds no client is there, and none will come again",
                fix="check the sessions of the trace, or train fewer rounds",
            )
        return moment

    def forecast(self) -> Callable[[float, float, Ints], Floats] | None:
        """How clients foresee their own availability; None: they come and go by rounds."""
        availability = self.availability
        if not isinstance(availability, TimedAvailability):
            return None
        return lambda begin, end, clients: availability.presence(begin, end, clients, self._seed)

    def _watching(self, clients: int) -> Watch:
        assert isinstance(self.availability, TimedAvailability)
        if self._watch is None or self._watch.clients != clients:
            self._watch = Watch(self.availability, clients, self._seed)
        return self._watch
