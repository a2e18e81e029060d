"""The last wide vector of each client that has reported one: a large population costs nothing until it does."""

from __future__ import annotations

import math

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, State, Vector
from muster.signals.base import Replies


def nothing() -> State:
    """An empty memory: `clients`, ascending, and their `rows` in float32."""
    return {"clients": np.zeros(0, dtype=np.int64), "rows": np.zeros((0, 0), dtype=np.float32)}


def remember(memory: State, replies: Replies, signal: str, keep_first: bool = False) -> None:
    """Add what clients reported, replacing what they reported before; rows with NaN are left out.

    With `keep_first` a client's first report stays.
    """
    replies = replies.finite(signal)
    clients, values = replies.clients, as_matrix(replies[signal])
    if keep_first:
        fresh = ~knows(memory, clients)
        clients, values = clients[fresh], values[fresh]
    if len(clients) == 0:
        return
    joined = np.union1d(memory["clients"], clients)
    if len(joined) > len(memory["clients"]):
        rows = np.zeros((len(joined), values.shape[1]), dtype=np.float32)
        rows[np.searchsorted(joined, memory["clients"])] = memory["rows"].reshape(-1, values.shape[1])
        memory["clients"], memory["rows"] = joined, rows
    memory["rows"][np.searchsorted(joined, clients)] = values


def as_matrix(values: Floats) -> Floats:
    """One row per client, also for signals of one number and for no clients."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def knows(memory: State, clients: Ints) -> Bools:
    """Which of `clients` have reported."""
    return np.isin(clients, memory["clients"])


def recall(memory: State, clients: Ints) -> Vector:
    """One row for each of `clients`; zeros for those that never reported."""
    known = knows(memory, clients)
    rows = np.zeros((len(clients), memory["rows"].shape[1]), dtype=np.float32)
    rows[known] = memory["rows"][np.searchsorted(memory["clients"], clients[known])]
    return rows
