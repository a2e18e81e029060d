"""What the server remembers about each client: arrays with one entry a client, no objects."""

from __future__ import annotations

import numpy as np

from muster.arrays import Floats, Ints, State, read_only
from muster.component import grown

#: Signals with more numbers than this are not remembered here: a method that needs them keeps them itself.
WIDEST_REMEMBERED = 1

NEVER = -1


class History:
    """Participation and last reports of every client."""

    def __init__(self, clients: int) -> None:
        self._trainings = np.zeros(clients, dtype=np.int64)
        self._rounds = np.zeros(clients, dtype=np.int64)
        self._last_round = np.full(clients, NEVER, dtype=np.int64)
        self._failures = np.zeros(clients, dtype=np.int64)
        self._signals: dict[str, Floats] = {}

    @property
    def clients(self) -> int:
        return len(self._trainings)

    @property
    def trainings(self) -> Ints:
        """How often each client's training was used."""
        return read_only(self._trainings)

    @property
    def rounds(self) -> Ints:
        """In how many rounds each client took part (several trainings in a round count once)."""
        return read_only(self._rounds)

    @property
    def last_round(self) -> Ints:
        """The last round in which each client took part; −1: never."""
        return read_only(self._last_round)

    @property
    def failures(self) -> Ints:
        """How often each client failed to answer or was refused."""
        return read_only(self._failures)

    def last(self, signal: str) -> Floats:
        """The last finite value that each client sent for a signal of one number; NaN: none so far."""
        if signal not in self._signals:
            return np.full(self.clients, np.nan)
        return read_only(self._signals[signal])

    def grow(self, clients: int) -> None:
        """Make room for clients that have joined."""
        self._trainings = grown(self._trainings, clients, 0)
        self._rounds = grown(self._rounds, clients, 0)
        self._last_round = grown(self._last_round, clients, NEVER)
        self._failures = grown(self._failures, clients, 0)
        self._signals = {name: grown(values, clients, np.nan) for name, values in self._signals.items()}

    def trained(self, clients: Ints, round: int) -> None:
        first_in_round = clients[self._last_round[clients] != round]
        self._rounds[first_in_round] += 1
        self._last_round[clients] = round
        self._trainings[clients] += 1

    def failed(self, clients: Ints) -> None:
        np.add.at(self._failures, clients, 1)

    def reported(self, signal: str, clients: Ints, values: Floats) -> None:
        if values.ndim > 1 and values.shape[1] > WIDEST_REMEMBERED:
            return
        if signal not in self._signals:
            self._signals[signal] = np.full((self.clients, *values.shape[1:]), np.nan)
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        self._signals[signal][clients[finite]] = values[finite]

    def state_dict(self) -> State:
        return {
            "trainings": self._trainings,
            "rounds": self._rounds,
            "last_round": self._last_round,
            "failures": self._failures,
            "signals": dict(self._signals),
        }

    def load_state_dict(self, values: State) -> None:
        self._trainings = values["trainings"]
        self._rounds = values["rounds"]
        self._last_round = values["last_round"]
        self._failures = values["failures"]
        self._signals = dict(values["signals"])
