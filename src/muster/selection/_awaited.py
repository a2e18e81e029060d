"""Clients that were told to train and have not been heard from yet.

Where late answers count, they come rounds after the request, and perhaps in a round in which the selector was not
asked for clients: then they are in none of its replies. What became of a client is still in the history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.selection.history import History

_CLIENT, _TRAININGS, _FAILURES, _NOTE = range(4)


def none_awaited() -> Floats:
    """No client: rows have the id, trainings used and failures when it was sent off, and a note."""
    return np.zeros((0, 4))


def sent_off(awaited: Floats, clients: Ints, history: History, note: Floats | Bools | float = 0.0) -> Floats:
    """These clients are awaited too; `note`: what the selector wants to remember about each until then."""
    rows = np.empty((len(clients), 4))
    rows[:, _CLIENT], rows[:, _NOTE] = clients, note
    rows[:, _TRAININGS], rows[:, _FAILURES] = history.trainings[clients], history.failures[clients]
    return np.concatenate([without(awaited, clients), rows])


def without(awaited: Floats, clients: Ints) -> Floats:
    """These clients are no longer awaited."""
    return awaited[~np.isin(awaited[:, _CLIENT], clients)]


def under_way(awaited: Floats) -> tuple[Ints, Floats]:
    """The clients that are awaited, and what was noted about them."""
    return awaited[:, _CLIENT].astype(np.int64), awaited[:, _NOTE]


@dataclass(frozen=True)
class News:
    """What has become of clients."""

    #: Clients whose training has been used since, ascending; and what was noted about them.
    answered: Ints
    notes: Floats
    #: Clients that have failed since, ascending.
    failed: Ints
    #: Clients that are still awaited.
    awaited: Floats


def heard_of(awaited: Floats, history: History, idle: Ints | None = None) -> News:
    """What the history says about the clients that are awaited.

    A client that is `idle` (ascending) without news never started: a combination of selectors has sent another.
    """
    ordered = awaited[np.argsort(awaited[:, _CLIENT])]
    clients, notes = under_way(ordered)
    answered = history.trainings[clients] > ordered[:, _TRAININGS]
    failed = ~answered & (history.failures[clients] > ordered[:, _FAILURES])
    gone = answered | failed
    if idle is not None and len(idle):
        gone |= idle[np.minimum(np.searchsorted(idle, clients), len(idle) - 1)] == clients
    return News(clients[answered], notes[answered], clients[failed], ordered[~gone])
