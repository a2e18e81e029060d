"""Recorded sessions: clients are online when the devices of a trace were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population
from muster.world import draws, traces
from muster.world.availability.base import Follower, TimedAvailability, availabilities


def lookup(recorded: traces.Sessions, devices: Ints, phase: Floats) -> tuple[Bools, Floats]:
    """Whether each device is online `phase` seconds after its recording began, and when that changes.

    Online from the beginning of a session until just before its end, and again after every period. `phase` lies
    between 0 and the device's period; the change may come when the recording is played again, after that.
    """
    # All recordings in sequence on one axis: a single search finds each device's last session so far.
    origin = np.concatenate([[0.0], np.cumsum(recorded.period)])
    owner = np.repeat(np.arange(len(recorded)), np.diff(recorded.starts))
    last = np.searchsorted(recorded.begin + origin[owner], origin[devices] + phase, side="right") - 1
    # One more entry, for positions before the first session.
    begin, end = np.append(recorded.begin, np.inf), np.append(recorded.end, np.inf)
    first, stop, period = recorded.starts[devices], recorded.starts[devices + 1], recorded.period[devices]
    online: Bools = (last >= first) & (phase < end[last])

    opening = np.where(stop > first, begin[first], np.inf)
    following = np.where(last + 1 < stop, begin[last + 1], opening + period)
    # A session that lasts to the end of the recording continues if the recording begins with one.
    around = online & (end[last] == period) & (opening == 0)
    once_more = np.where(end[first] == period, np.inf, end[first])
    ending = end[last] + np.where(around, once_more, 0.0)
    return online, np.where(online, ending, following)


def states_of_copies(recorded: traces.Sessions, devices: Ints, copies: Ints, now: float) -> tuple[Bools, Floats]:
    """Whether each copy of a device is online `now`, and when that changes: copy k runs k days ahead."""
    period = recorded.period[devices]
    ahead = traces.DAY * copies % period
    # The days are taken off before the time is added: in large numbers its fractions would be lost.
    moment = now + ahead
    phase = moment % period
    online, change = lookup(recorded, devices, phase)
    # From when this playing of the recording began, not from `now`: whenever a change is asked for, it is the same
    # to the bit.
    return online, np.maximum((moment - phase) - ahead + change, now)


def repeats_after(recorded: traces.Sessions) -> Floats:
    """Of which number on a device's copies do what earlier ones do; inf: of none, or of a very large one.

    Recordings of whole days repeat soon.
    """
    period = recorded.period
    whole = (period % 1 == 0) & (period < 2**53)
    seconds = np.where(whole, period, 1).astype(np.int64)
    return np.where(whole, seconds // np.gcd(seconds, traces.DAY), np.inf)


class SessionFollower:
    """Gives what `states` gives, for all clients: copies of a device that behave alike are looked up once."""

    def __init__(self, recorded: traces.Sessions, clients: int, seed: int) -> None:
        copies = -(-clients // len(recorded))
        different = np.minimum(repeats_after(recorded), copies).astype(np.int64)
        first = np.cumsum(different) - different
        self._recorded = recorded
        #: What there is to look up, and which of it concerns each client.
        self._devices = np.repeat(np.arange(len(recorded)), different)
        self._copies = np.arange(len(self._devices)) - first[self._devices]
        self._which = np.empty(clients, dtype=np.min_scalar_type(len(self._devices)))
        for part in draws.slices(clients):
            devices, copy = traces.devices_of(np.arange(part.start, part.stop), len(recorded), seed)
            self._which[part] = first[devices] + copy % different[devices]

    def __call__(self, now: float, who: Ints) -> tuple[Bools, Floats]:
        which = self._which[who]
        if len(who) <= len(self._devices):
            return states_of_copies(self._recorded, self._devices[which], self._copies[which], now)
        online, changes = states_of_copies(self._recorded, self._devices, self._copies, now)
        return online[which], changes[which]


@availabilities.register("sessions")
@dataclass(frozen=True)
class RecordedSessions(TimedAvailability):
    """Each client is online when a device of a trace file (FedScale's layout) was.

    Where there are more clients than devices, the k-th client of a device runs k days ahead of its recording: the
    hour of the day is kept, and clients of one device do not come and go together.
    """

    #: A path, or the name of a file in the folder `devices` of the data.
    file: str

    def check(self, population: Population) -> None:
        traces.sessions(self.file)

    def states(self, now: float, who: Ints, seed: int) -> tuple[Bools, Floats]:
        recorded = traces.sessions(self.file)
        kinds, copies = traces.devices_of(who, len(recorded), seed)
        return states_of_copies(recorded, kinds.astype(np.int64), copies, now)

    def follower(self, clients: int, seed: int) -> Follower:
        return SessionFollower(traces.sessions(self.file), clients, seed)
