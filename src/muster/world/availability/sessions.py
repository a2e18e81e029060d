"""Recorded sessions: clients are online when the devices of a trace were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Population
from muster.world import traces
from muster.world.availability.base import TimedAvailability, availabilities


def lookup(recorded: traces.Sessions, devices: Ints, phase: Floats) -> tuple[Bools, Floats]:
    """Whether each device is online `phase` seconds after its recording began, and for how long that remains so.

    Online from the beginning of a session until just before its end, and again after every period. `phase` lies
    between 0 and the device's period.
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
    return online, np.where(online, ending, following) - phase


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
        kinds, copy = traces.devices_of(who, len(recorded), seed)
        devices = kinds.astype(np.int64)
        phase = (now + traces.DAY * copy) % recorded.period[devices]
        online, remaining = lookup(recorded, devices, phase)
        return online, now + remaining
