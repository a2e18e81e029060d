"""What the server remembers about each client: arrays with one entry per client (see docs/signals.md)."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints, State, read_only
from muster.core.component import grown

#: Signals with more numbers than this are not remembered here: a method that needs them keeps them itself.
WIDEST_REMEMBERED = 1

NEVER = -1

#: Numbers of rounds and trainings. Half as wide as ids: there may be twenty million of each, and memory that is
#: touched for the first time takes longer than everything else in a round.
Counts: TypeAlias = npt.NDArray[np.int32]


class History:
    """Participation and last reports of every client, for selectors: `View.history`.

    >>> history = History(3)
    >>> history.trained(np.array([0, 2]), round=0)
    >>> history.reported("train_loss", np.array([0, 2]), np.array([0.5, 0.25]))
    >>> history.rounds.tolist(), history.last_round.tolist(), history.last("train_loss").tolist()
    ([1, 0, 1], [0, -1, 0], [0.5, nan, 0.25])
    """

    def __init__(self, clients: int) -> None:
        self._forget(clients)

    def _forget(self, clients: int) -> None:
        #: Whether a snapshot shares these arrays.
        self._shared = False
        #: Clients about which anything is remembered.
        self._known = np.zeros(clients, dtype=np.bool_)
        # Written to, and not only promised: what every round touches is there before the first.
        self._trainings: Counts = np.full(clients, 0, dtype=np.int32)
        self._rounds: Counts = np.full(clients, 0, dtype=np.int32)
        self._last_round: Counts = np.full(clients, NEVER, dtype=np.int32)
        self._failures: Counts = np.zeros(clients, dtype=np.int32)
        self._durations = np.full(clients, np.nan)
        self._given_up = np.zeros(clients, dtype=np.bool_)
        self._staleness: Counts = np.zeros(clients, dtype=np.int32)
        self._signals: dict[str, Floats] = {}

    @property
    def clients(self) -> int:
        return len(self._trainings)

    @property
    def trainings(self) -> Counts:
        """How often each client's training was used."""
        return read_only(self._trainings)

    @property
    def rounds(self) -> Counts:
        """In how many rounds each client took part (several trainings in a round count once)."""
        return read_only(self._rounds)

    @property
    def last_round(self) -> Counts:
        """The last round in which each client took part; −1: never."""
        return read_only(self._last_round)

    @property
    def failures(self) -> Counts:
        """How often each client failed to answer or was refused."""
        return read_only(self._failures)

    @property
    def durations(self) -> Floats:
        """Seconds that each client's last training took from request to answer; NaN: none is known.

        For a client that was given up on, it is how long the server had waited, if that is longer than was known.
        """
        return read_only(self._durations)

    @property
    def given_up(self) -> Bools:
        """Whether the server did not wait for the client's last training: its duration is only a lower bound."""
        return read_only(self._given_up)

    @property
    def staleness(self) -> Counts:
        """How many aggregations each client's last used update had missed; 0 also for those never used."""
        return read_only(self._staleness)

    def last(self, signal: str) -> Floats:
        """The last finite value that each client sent for a signal of one number; NaN: none so far."""
        if signal not in self._signals:
            return np.full(self.clients, np.nan)
        return read_only(self._signals[signal])

    def snapshot(self) -> History:
        """The history as it is now. Arrays are copied only when this one next changes."""
        self._shared = True
        return copy.copy(self)

    def _own(self) -> None:
        """Before a change: what a snapshot sees must not change."""
        if self._shared:
            self.__dict__ = copy.deepcopy(self.__dict__) | {"_shared": False}

    def grow(self, clients: int) -> None:
        """Make room for clients that have joined."""
        if clients > self.clients:
            self._own()
        self._known = grown(self._known, clients, False)
        self._trainings = grown(self._trainings, clients, 0)
        self._rounds = grown(self._rounds, clients, 0)
        self._last_round = grown(self._last_round, clients, NEVER)
        self._failures = grown(self._failures, clients, 0)
        self._durations = grown(self._durations, clients, np.nan)
        self._given_up = grown(self._given_up, clients, False)
        self._staleness = grown(self._staleness, clients, 0)
        self._signals = {name: grown(values, clients, np.nan) for name, values in self._signals.items()}

    def trained(self, clients: Ints, round: int) -> None:
        self._own()
        self._known[clients] = True
        first_in_round = clients[self._last_round[clients] != round]
        self._rounds[first_in_round] += 1
        self._last_round[clients] = round
        self._trainings[clients] += 1

    def took(self, clients: Ints, seconds: Floats) -> None:
        """How long these clients' trainings took."""
        self._own()
        self._known[clients] = True
        self._durations[clients] = seconds
        _write(self._given_up, clients, False)

    def waited(self, clients: Ints, seconds: Floats) -> None:
        """These clients had not answered after this time."""
        self.took(clients, np.fmax(self._durations[clients], seconds))
        self._given_up[clients] = True

    def stale(self, clients: Ints, staleness: Ints) -> None:
        """How many aggregations after their start these clients' updates were used."""
        self._own()
        _write(self._staleness, clients, staleness)

    def failed(self, clients: Ints) -> None:
        self._own()
        self._known[clients] = True
        np.add.at(self._failures, clients, 1)

    def reported(self, signal: str, clients: Ints, values: Floats) -> None:
        if values.ndim > 1 and values.shape[1] > WIDEST_REMEMBERED:
            return
        self._own()
        if signal not in self._signals:
            self._signals[signal] = np.full((self.clients, *values.shape[1:]), np.nan)
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        self._known[clients[finite]] = True
        self._signals[signal][clients[finite]] = values[finite]

    def state_dict(self) -> State:
        """Only the clients about which something is known: few, in most runs with a million clients."""
        known = np.flatnonzero(self._known)
        return {
            "clients": self.clients,
            "known": known,
            "trainings": self._trainings[known],
            "rounds": self._rounds[known],
            "last_round": self._last_round[known],
            "failures": self._failures[known],
            "durations": self._durations[known],
            "given_up": self._given_up[known],
            "staleness": self._staleness[known],
            "signals": {name: values[known] for name, values in self._signals.items()},
        }

    def load_state_dict(self, values: State) -> None:
        # Checkpoints from before there was "known" hold every client.
        known = values.get("known", np.arange(len(values["trainings"])))
        self._forget(values.get("clients", len(known)))
        self._known[known] = True
        self._trainings[known] = values["trainings"]
        self._rounds[known] = values["rounds"]
        self._last_round[known] = values["last_round"]
        self._failures[known] = values["failures"]
        # Checkpoints from before there was a clock have none of these.
        self._durations[known] = values.get("durations", np.nan)
        self._given_up[known] = values.get("given_up", False)
        self._staleness[known] = values.get("staleness", 0)
        for name, rows in values["signals"].items():
            self._signals[name] = np.full((self.clients, *rows.shape[1:]), np.nan)
            self._signals[name][known] = rows


def _write(values: npt.NDArray[Any], clients: Ints, new: npt.ArrayLike) -> None:
    """Set what is not so already: where nothing ever changes, no page of memory is touched."""
    other = np.flatnonzero(values[clients] != new)
    values[clients[other]] = np.broadcast_to(new, len(clients))[other]
