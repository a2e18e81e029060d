"""A rhythm of on and off for any number of clients, fitted to the recorded sessions of 100 devices.

Every client has the character of one of the devices: how long its sessions last and how long the gaps between
them are. Gaps pass faster in some hours of the day than in others. Nothing is stored: a client's life is cut into
stretches of some sessions, and each stretch follows from the seed, the client and the stretch's number. So any
client can be asked about any moment, and only the stretch around it is played.

Time 0 is in the middle of every client's life. Who is online then, and until when, is drawn from a table of
openings: the states of many lives that had begun long before. So the first look at millions of clients is one draw
for each.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints
from muster.core.randomness import Words
from muster.world import draws
from muster.world.availability.base import Follower, TimedAvailability, availabilities

HOUR, DAY = 3_600, 86_400
#: Sessions that a stretch has on average.
CYCLES = 16
#: Draws reserved for a stretch; no client has that many sessions in one.
_DRAWS = 1 << 16
#: In 68 years from time 0: until then, what has been played is kept in 32 bits.
_KEPT_UNTIL = 1 << 31
#: Openings in the table, as bits: this many bits of a client's key say which one is its own.
_OPENING_BITS = 15


_ORIGIN = (
    "Fitted to the sessions of 100 devices of FedScale's traces (github.com/SymbioticLab/FedScale),",
    "Apache License, Version 2.0, see NOTICE. Quantiles of the lengths of sessions and gaps, in seconds,",
    "of one device a row; the row 'rhythm' has, by hour, the logarithm of how much longer gaps last.",
)


@dataclass(frozen=True)
class Openings:
    """States at time 0: of which character a client is, whether it is online, and in which second that ends."""

    characters: Ints
    online: Bools
    ends: Floats
    #: The second at which the next stretch begins, later than that.
    turns: Ints

    def __getitem__(self, some: npt.NDArray[np.integer]) -> Openings:
        return Openings(self.characters[some], self.online[some], self.ends[some], self.turns[some])


@dataclass(frozen=True)
class Characters:
    """The fit: quantiles of the lengths of sessions and gaps, a row per character, and the rhythm of the day."""

    #: characters × quantiles at equal steps from 0 to 1, in seconds.
    sessions: Floats
    gaps: Floats
    #: By hour of the day: the logarithm of the factor by which gaps last longer.
    rhythm: Floats

    @cached_property
    def table(self) -> Floats:
        """The quantiles of gaps, below them those of sessions, and of what is left of either at any moment."""
        return np.concatenate([self.gaps, self.sessions, left_of(self.gaps), left_of(self.sessions)])

    @cached_property
    def speeds(self) -> Floats:
        """How fast a gap passes in each hour of the day."""
        return np.exp(-self.rhythm)

    @cached_property
    def passed(self) -> Floats:
        """How much of a gap has passed by the beginning of each hour, and by the end of the day."""
        return HOUR * np.concatenate([[0.0], np.cumsum(self.speeds)])

    @cached_property
    def shares(self) -> Floats:
        """The share of the time that each character is online."""
        on, off = mean_of_quantiles(self.sessions), mean_of_quantiles(self.gaps)
        return on / (on + off)

    @cached_property
    def stretches(self) -> Ints:
        """Seconds of a stretch of each character's life."""
        cycle = mean_of_quantiles(self.sessions) + mean_of_quantiles(self.gaps)
        return np.ceil(CYCLES * cycle).astype(np.int64)

    @cached_property
    def openings(self) -> Openings:
        """The states of lives of all characters alike at a midnight after each has had a stretch or more."""
        count = 1 << _OPENING_BITS
        keys = draws.nth(np.zeros(count, dtype=np.uint64), np.arange(count, dtype=np.uint64))
        kinds = np.arange(count) % len(self.sessions)
        length = self.stretches[kinds]
        # Their first stretches ended anywhere. How they began does not matter: what is looked at comes later.
        turns = 1 + (draws.uniform(draws.nth(keys, np.zeros(1, dtype=np.uint64))) * length).astype(np.int64)
        who = Lives(keys, Openings(kinds, np.zeros(count, dtype=np.bool_), np.zeros(count), turns))
        midnight = -(-int(2 * self.stretches.max()) // DAY) * DAY
        online, change = states(self, who, np.full(count, midnight))
        turns += _stretch(self, who, change) * length
        return Openings(kinds, online, (change - midnight).astype(np.float64), turns - midnight)

    def write(self, path: Path) -> None:
        """As a table: a row per character, sessions before gaps; the last row is the rhythm."""
        text = io.StringIO()
        text.writelines(f"# {remark}\n" for remark in _ORIGIN)
        table = csv.writer(text, lineterminator="\n")
        for kind, rows in (("session", self.sessions), ("gap", self.gaps), ("rhythm", self.rhythm[None])):
            table.writerows([kind, *(f"{value:.4g}" for value in row)] for row in rows)
        path.write_text(text.getvalue(), encoding="utf-8")

    @classmethod
    def read(cls, text: str) -> Characters:
        rows: dict[str, list[list[float]]] = {}
        for kind, *numbers in csv.reader(line for line in text.splitlines() if not line.startswith("#")):
            rows.setdefault(kind, []).append([float(number) for number in numbers])
        return cls(np.array(rows["session"]), np.array(rows["gap"]), np.array(rows["rhythm"][0]))


def mean_of_quantiles(quantiles: Floats) -> Floats:
    """The mean of a distribution whose quantiles lie on straight lines between those that are given."""
    mean: Floats = (quantiles[:, 1:] + quantiles[:, :-1]).mean(axis=1) / 2
    return mean


def from_quantiles(quantiles: Floats, rows: npt.NDArray[np.integer], chance: Floats) -> Floats:
    """The `chance`-quantile of each row's distribution."""
    position = chance * (quantiles.shape[1] - 1)
    below = position.astype(np.int64)
    low = quantiles[rows, below]
    value: Floats = low + (position - below) * (quantiles[rows, below + 1] - low)
    return value


def left_of(quantiles: Floats) -> Floats:
    """The quantiles of how much longer a session (or gap) lasts that is met at any moment of it.

    Long ones fill more time and are met more often: up to x, that is ∫₀ˣ (1 − F) ÷ mean.
    """
    left = np.empty_like(quantiles)
    longer = np.concatenate([[1.0], np.linspace(1, 0, quantiles.shape[1])])
    for lengths, found in zip(quantiles, left, strict=True):
        ends = np.concatenate([[0.0], lengths])
        wide = np.diff(ends)
        met = np.concatenate([[0.0], np.cumsum(wide * (longer[1:] + longer[:-1]) / 2)])
        wanted = np.linspace(0, met[-1], len(lengths))
        piece = np.minimum(np.searchsorted(met, wanted, side="right"), len(lengths)) - 1
        # Between two quantiles 1 − F falls in a straight line, and its integral is a parabola.
        start, fall = longer[piece], longer[piece] - longer[piece + 1]
        more = np.divide(wanted - met[piece], wide[piece], out=np.zeros_like(wanted), where=wide[piece] > 0)
        way = 2 * more / (start + np.sqrt(np.maximum(start**2 - 2 * fall * more, 0)))
        found[:] = ends[piece] + wide[piece] * np.minimum(way, 1)
    return left


@cache
def fitted() -> Characters:
    """The fit that is shipped."""
    file = resources.files("muster.world.availability") / "rhythm.csv"
    return Characters.read(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Lives:
    """What clients are: a key of their own random numbers, and how they began."""

    keys: Words
    opening: Openings

    @property
    def characters(self) -> Ints:
        return self.opening.characters

    def __getitem__(self, some: Ints) -> Lives:
        return Lives(self.keys[some], self.opening[some])


def own_keys(who: Ints, seed: int) -> Words:
    """Each client's key: its number's word of one generator of the seed."""
    return draws.nth(_root(seed), who.astype(np.uint64))


@cache
def _root(seed: int) -> Words:
    return draws.words(seed, "availability rhythm", clients=np.zeros(1, dtype=np.int64))[0, :1]


def which_opening(keys: Words) -> Words:
    return keys >> np.uint64(64 - _OPENING_BITS)


def lives(characters: Characters, who: Ints, seed: int) -> Lives:
    keys = own_keys(who, seed)
    return Lives(keys, characters.openings[which_opening(keys)])


def _stretch(characters: Characters, who: Lives, now: Ints) -> Ints:
    """The number of each client's stretch that contains its second `now`."""
    number: Ints = np.maximum((now - who.opening.turns) // characters.stretches[who.characters] + 1, 0)
    return number


@dataclass(frozen=True)
class Playback:
    """How far the stretch of each client's life that contains a moment has been played.

    Eleven bytes per client are kept, and all of them are written at the start: touching memory for the first time,
    here and there, costs more than playing.
    """

    stretch: npt.NDArray[np.integer]
    #: Whether the client is online, until which second (the stretch may end before), and the number of draws; 0:
    #: nothing has been played.
    online: Bools
    end: npt.NDArray[np.integer]
    number: npt.NDArray[np.uint16]

    def __getitem__(self, some: Ints) -> Playback:
        return Playback(self.stretch[some], self.online[some], self.end[some], self.number[some])

    def __setitem__(self, some: Ints, others: Playback) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)[some] = getattr(others, name)

    @classmethod
    def nothing(cls, clients: int) -> Playback:
        """Nothing played yet, for any client."""
        return cls(
            np.full(clients, 0, dtype=np.uint32),
            np.full(clients, False),
            np.full(clients, 0, dtype=np.uint32),
            np.full(clients, 0, dtype=np.uint16),
        )


def states(characters: Characters, who: Lives, now: Ints) -> tuple[Bools, Ints]:
    """Whether each client is online in its second `now`, and the second at which that changes."""
    return until_change(characters, who, played_until(characters, who, now, Playback.nothing(len(now))))


def until_change(characters: Characters, who: Lives, played: Playback) -> tuple[Bools, Ints]:
    online, change, cut = _cut(characters, who, played)
    # A stretch may end in the state in which the next one begins.
    cut_short = np.flatnonzero(cut)
    while len(cut_short):
        some, nothing = who[cut_short], Playback.nothing(len(cut_short))
        after, later, cut = _cut(characters, some, played_until(characters, some, change[cut_short], nothing))
        goes_on = after == online[cut_short]
        change[cut_short[goes_on]] = later[goes_on]
        cut_short = cut_short[goes_on & cut]
    return online, change


def _cut(characters: Characters, who: Lives, played: Playback) -> tuple[Bools, Ints, Bools]:
    """The state; when this session or gap ends; whether the stretch ends first and cuts it."""
    over = who.opening.turns + played.stretch * characters.stretches[who.characters]
    return played.online, np.minimum(played.end, over), played.end >= over


def played_until(characters: Characters, who: Lives, now: Ints, before: Playback) -> Playback:
    """Play each client's stretch until the second `now`: from `before`, where that is of the same stretch."""
    length, stretch = characters.stretches[who.characters], _stretch(characters, who, now)
    base = stretch.astype(np.uint64) * np.uint64(_DRAWS)
    # The first stretch begins with its opening. Others begin at a moment like any other: a state is drawn, and
    # what is left of it. Were it a whole session, there would be too many short ones.
    opening = stretch == 0
    first = draws.uniform(draws.nth(who.keys, base)) < characters.shares[who.characters]
    online = np.where(opening, who.opening.online, first)
    end = np.where(opening, who.opening.ends.astype(np.int64), who.opening.turns + (stretch - 1) * length)
    goes_on = (before.stretch == stretch) & (before.number > 0)
    online, end = np.where(goes_on, before.online, online), np.where(goes_on, before.end, end)
    number = np.where(goes_on, before.number, 1).astype(np.uint16)
    # What has been played to its end is followed by the other state.
    online ^= (goes_on | opening) & (end <= now)
    playing = np.flatnonzero(end <= now)
    while len(playing):
        chance = draws.uniform(draws.nth(who.keys[playing], base[playing] + number[playing]))
        met = (number[playing] == 1) & ~opening[playing]
        row = who.characters[playing] + len(characters.gaps) * (online[playing] + 2 * met)
        lasting = from_quantiles(characters.table, row, chance)
        end[playing] = _ends(characters, online[playing], end[playing], lasting)
        number[playing] += 1
        playing = playing[end[playing] <= now[playing]]
        online[playing] ^= True
    return Playback(stretch, online, end, number)


class RhythmFollower:
    """Gives what `states` gives, for all clients as time advances: stretches are continued, not replayed.

    Clients that are still as they were at time 0 cost nothing but a look at their openings.
    """

    def __init__(self, characters: Characters, clients: int, seed: int) -> None:
        self._characters, self._seed, self._now = characters, seed, 0.0
        #: Which opening is each client's own.
        self._opening = np.empty(clients, dtype=np.min_scalar_type((1 << _OPENING_BITS) - 1))
        for part in draws.slices(clients):
            self._opening[part] = which_opening(own_keys(np.arange(part.start, part.stop), seed))
        self._played = Playback.nothing(clients)

    def __call__(self, now: float, who: Ints) -> tuple[Bools, Floats]:
        if now < self._now:  # what has been played is too far ahead
            self._played = Playback.nothing(len(self._played.online))
        self._now = now
        openings, which = self._characters.openings, self._opening[who]
        online, change = openings.online[which], openings.ends[which]
        later = np.flatnonzero(change <= now)
        if len(later):
            online[later], change[later] = self._changed(now, who[later])
        return online, change

    def _changed(self, now: float, who: Ints) -> tuple[Bools, Ints]:
        some, moment = lives(self._characters, who, self._seed), np.full(len(who), int(now // 1))
        played = played_until(self._characters, some, moment, self._played[who])
        if now < _KEPT_UNTIL:
            self._played[who] = played
        return until_change(self._characters, some, played)


def _ends(characters: Characters, online: Bools, begin: Ints, lasting: Floats) -> Ints:
    """The seconds at which sessions (or gaps) end that begin at the given ones."""
    end = begin + lasting
    off = np.flatnonzero(~online)
    end[off] = passed_by(characters, begin[off], lasting[off])
    return np.maximum(np.rint(end), begin + 1).astype(np.int64)


def passed_by(characters: Characters, begin: Ints, amount: Floats) -> Floats:
    """When a gap of `amount` seconds is over, where hours pass at different speeds."""
    hour = begin // HOUR % 24
    end: Floats = begin + amount / characters.speeds[hour]
    # Most gaps are short, and over in the hour in which they begin.
    long = np.flatnonzero(end > (begin // HOUR + 1) * HOUR)
    hour, day = hour[long], begin[long] // DAY
    done = characters.passed[hour] + begin[long] % HOUR * characters.speeds[hour] + amount[long]
    days, rest = np.divmod(done, characters.passed[-1])
    last = np.searchsorted(characters.passed[1:-1], rest, side="right")
    end[long] = (day + days) * DAY + last * HOUR + (rest - characters.passed[last]) / characters.speeds[last]
    return end


@availabilities.register("rhythm")
@dataclass(frozen=True)
class Rhythm(TimedAvailability):
    """Sessions with a daily rhythm, fitted to those of 100 real devices, for any number of clients."""

    def states(self, now: float, who: Ints, seed: int) -> tuple[Bools, Floats]:
        online, change = states(fitted(), lives(fitted(), who, seed), np.full(len(who), int(now // 1)))
        return online, change.astype(np.float64)

    def follower(self, clients: int, seed: int) -> Follower:
        return RhythmFollower(fitted(), clients, seed)
