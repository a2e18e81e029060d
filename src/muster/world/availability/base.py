"""Who can be reached: a pure function of seed and moment, so a resumed run sees the same clients.

Some methods follow rounds, others follow time. Both answer the same three questions about a *moment*, and say with
`timed` what a moment is to them: the round, or the seconds on the virtual clock. Callers need not distinguish
them: `availability.moment(round, now)` gives each method the right one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Component
from muster.core.registry import Registry
from muster.world import draws

#: (moment, clients) → whether each of them is there, and when that changes.
Follower: TypeAlias = Callable[[float, Ints], tuple[Bools, Floats]]

_LAST_SECOND = float(np.iinfo(np.uint32).max)


class Availability(Component):
    """Decides which clients can be reached. Implementations are frozen dataclasses without state.

    >>> class EveryOther(Availability):
    ...     '''Clients with even ids in even rounds, the others in odd ones.'''
    ...
    ...     def available(self, moment, clients, seed):
    ...         return np.arange(int(moment) % 2, clients, 2)
    >>> EveryOther().available(3, clients=6, seed=0).tolist()
    [1, 3, 5]
    """

    #: Whether moments are seconds on the virtual clock; otherwise they are rounds, 0-based.
    timed: ClassVar[bool] = False

    def moment(self, round: int, now: float) -> float:
        """What this method calls the moment: the round, or the time."""
        return now if self.timed else round

    @abstractmethod
    def available(self, moment: float, clients: int, seed: int) -> Ints:
        """The ids of the clients that can be reached at `moment`, ascending; may be empty."""

    def until(self, moment: float, who: Ints, seed: int) -> Floats:
        """Seconds until each of `who` is gone (0: it is not there). By rounds: no client leaves during a round."""
        return np.full(len(who), np.inf)

    def next_start(self, moment: float, clients: int, seed: int) -> float:
        """The first moment, from this one on, at which a client is there; inf: never.

        By rounds it is `moment` itself: waiting brings no one, only the next round does.
        """
        return moment


#: Looks ahead for which it is noted in advance whose state may change.
LOOKS_AHEAD = 16


class TimedAvailability(Availability):
    """Clients come and go on the virtual clock. A method only says who is there, and when that changes."""

    timed: ClassVar[bool] = True

    @abstractmethod
    def states(self, now: float, who: Ints, seed: int) -> tuple[Bools, Floats]:
        """Whether each of `who` is there at `now`, and the time after `now` at which that changes (inf: never)."""

    def follower(self, clients: int, seed: int) -> Follower:
        """Answers as `states` does for moments that only move forward, which may be quicker."""
        return lambda now, who: self.states(now, who, seed)

    def available(self, now: float, clients: int, seed: int) -> Ints:
        there = np.empty(clients, dtype=np.bool_)
        for part in draws.slices(clients):
            there[part], _ = self.states(now, np.arange(part.start, part.stop), seed)
        return np.flatnonzero(there)

    def until(self, now: float, who: Ints, seed: int) -> Floats:
        there, changes = self.states(now, who, seed)
        return np.where(there, changes - now, 0.0)

    def presence(self, begin: float, end: float, who: Ints, seed: int) -> Floats:
        """The share of the time from `begin` to `end` during which each of `who` expects to be there.

        An estimate that a device can make: it knows when its present session or gap ends, and
        assumes that the next one lasts.
        """
        there, changes = self.states(begin, who, seed)
        until_change = np.clip(changes - begin, 0.0, end - begin) / (end - begin)
        return np.where(there, until_change, 1.0 - until_change)

    def next_start(self, now: float, clients: int, seed: int) -> float:
        first = np.inf
        for part in draws.slices(clients):
            there, changes = self.states(now, np.arange(part.start, part.stop), seed)
            if there.any():
                return now
            first = min(first, float(changes.min()))
        return first


class Watch:
    """Follows all clients through time: looks again only at those whose state may have changed meanwhile.

    Gives the same answers as `available`, `until` and `next_start`, in a few milliseconds for a million clients
    when the clock has advanced a little. It holds nothing that a checkpoint would need: a new watch answers the
    same.
    """

    def __init__(self, availability: TimedAvailability, clients: int, seed: int) -> None:
        self._states = availability.follower(clients, seed)
        self._now = -np.inf
        # Written to, and not only promised: the first look finds its memory.
        self._there = np.full(clients, False)
        #: A second until which nothing changes: the last but one before a client's next change, with some to spare
        #: for the rounding of moments; or the last that fits.
        self._quiet: npt.NDArray[np.uint32] = np.full(clients, 0, dtype=np.uint32)
        #: All whose state may change up to a moment: until then no other client need be looked at.
        self._soon: Ints = np.empty(0, dtype=np.int64)
        self._horizon = -np.inf

    @property
    def clients(self) -> int:
        return len(self._there)

    def there(self, now: float) -> Bools:
        """Whether each client is there: a copy."""
        self._look(now)
        return self._there.copy()

    def available(self, now: float) -> Ints:
        self._look(now)
        return np.flatnonzero(self._there)

    def until(self, now: float, who: Ints) -> Floats:
        self._look(now)
        there, changes = self._states(now, who)
        return np.where(there, changes - now, 0.0)

    def next_start(self, now: float) -> float:
        self._look(now)
        if self._there.any():
            return now
        if not self.clients:
            return np.inf
        _, changes = self._states(now, np.flatnonzero(self._quiet == self._quiet.min()))
        return float(changes.min())

    def _look(self, now: float) -> None:
        if now == self._now:
            return
        if self._now < now <= self._horizon:
            self._update(now, self._soon[self._quiet[self._soon] <= now])
        elif self._now < now and np.isfinite(self._now):
            stale = np.flatnonzero(self._quiet <= now)
            self._update(now, stale)
            self._look_ahead(now, len(stale))
        else:  # at first, and back in time, nothing that is known helps
            for part in draws.slices(len(self._there)):
                self._there[part], self._quiet[part] = self._seen(now, np.arange(part.start, part.stop))
            self._horizon = now
        self._now = now

    def _update(self, now: float, stale: Ints) -> None:
        for part in draws.slices(len(stale)):
            who = stale[part]
            self._there[who], self._quiet[who] = self._seen(now, who)

    def _look_ahead(self, now: float, changed: int) -> None:
        """Note who may change within the next looks, should they be as far apart as the last two."""
        # Not if that would be nearly all clients: then a list saves nothing.
        worthwhile = LOOKS_AHEAD * changed < len(self._there) / 4
        self._horizon = now + LOOKS_AHEAD * (now - self._now) if worthwhile else now
        self._soon = np.flatnonzero(self._quiet <= self._horizon) if worthwhile else self._soon[:0]

    def _seen(self, now: float, who: Ints) -> tuple[Bools, npt.NDArray[np.uint32]]:
        there, changes = self._states(now, who)
        quiet = np.minimum(changes, _LAST_SECOND).astype(np.uint32)
        quiet -= quiet > 0
        return there, quiet


availabilities: Registry[Availability] = Registry(
    "availability", "muster.world.availability", "muster.availabilities"
)
