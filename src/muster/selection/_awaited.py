"""Who was sent to train and has not been heard of yet.

Where late answers count, they come rounds after the request, and perhaps in a round in which the selector was not
asked for anybody: then they are in no replies of its own. What became of a client is in the history all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.selection.history import History

_CLIENT, _TRAININGS, _FAILURES, _NOTE = range(4)


def nobody() -> Floats:
    """One row for each client under way: id, trainings used and failures when it was sent off, and a note."""
    return np.zeros((0, 4))


def sent_off(awaited: Floats, clients: Ints, history: History, note: Floats | Bools | float = 0.0) -> Floats:
    """These clients are awaited too; `note`: what the selector wants to remember of each until then."""
    rows = np.empty((len(clients), 4))
    rows[:, _CLIENT], rows[:, _NOTE] = clients, note
    rows[:, _TRAININGS], rows[:, _FAILURES] = history.trainings[clients], history.failures[clients]
    return np.concatenate([without(awaited, clients), rows])


def without(awaited: Floats, clients: Ints) -> Floats:
    """These clients are awaited no more."""
    return awaited[~np.isin(awaited[:, _CLIENT], clients)]


def under_way(awaited: Floats) -> tuple[Ints, Floats]:
    """The clients that are awaited, and what was noted of them."""
    return awaited[:, _CLIENT].astype(np.int64), awaited[:, _NOTE]


@dataclass(frozen=True)
class News:
    """What has become of clients."""

    #: Whose training has been used since it was sent off, ascending; and what was noted of them.
    answered: Ints
    notes: Floats
    #: Who has failed since, ascending.
    failed: Ints
    #: Who is awaited still.
    awaited: Floats


def heard_of(awaited: Floats, history: History, idle: Ints | None = None) -> News:
    """What the history says of those who are awaited.

    Who is `idle` (ascending) without news never set out: a combination of selectors has sent another in its place.
    """
    ordered = awaited[np.argsort(awaited[:, _CLIENT])]
    clients, notes = under_way(ordered)
    answered = history.trainings[clients] > ordered[:, _TRAININGS]
    failed = ~answered & (history.failures[clients] > ordered[:, _FAILURES])
    gone = answered | failed
    if idle is not None and len(idle):
        gone |= idle[np.minimum(np.searchsorted(idle, clients), len(idle) - 1)] == clients
    return News(clients[answered], notes[answered], clients[failed], ordered[~gone])
