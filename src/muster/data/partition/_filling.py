"""Fills clients in turn from class stocks that run out, many clients at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.data.federated import Index

#: (classes in stock, samples that each of some clients needs) ↦ counts and weights, clients × classes in stock.
Propose: TypeAlias = Callable[[Ints, Ints], tuple[Ints, Floats]]
#: (what a client still needs, its weights, what is left), all classes ↦ what it takes instead.
Complete: TypeAlias = Callable[[int, Floats, Ints], Ints]

_BLOCK = 4096


def fill_in_order(stock: Ints, needs: Ints, propose: Propose, complete: Complete) -> npt.NDArray[np.int32]:
    """How many samples of each class every client takes (clients × classes), in the order of the clients.

    As long as no class runs out, clients do not influence each other: a block of them is drawn at once, and the
    clients before the first one that asks for too much are kept. That one takes what there is, and `complete`
    says what it takes for the rest. Clients after one that empties a class exactly are drawn again without it. A
    class runs out at most once, so there are at most as many blocks that end early.
    """
    clients, classes = len(needs), len(stock)
    stock = stock.copy()
    taken = np.zeros((clients, classes), dtype=np.int32)
    first = 0
    while first < clients:
        present = np.flatnonzero(stock)
        counts, weights = propose(present, needs[first : first + _BLOCK])
        asked = np.cumsum(counts, axis=0)
        short = (asked > stock[present]).any(axis=1)
        empty = (asked - counts == stock[present]).any(axis=1)
        kept = int(np.argmax(short | empty)) if (short | empty).any() else len(counts)
        taken[first : first + kept, present] = counts[:kept]
        stock[present] -= counts[:kept].sum(axis=0)
        first += kept
        if kept < len(counts) and not empty[kept]:
            row = np.zeros(classes, dtype=np.int64)
            row[present] = np.minimum(counts[kept], stock[present])
            preference = np.zeros(classes)
            preference[present] = weights[kept]
            row += complete(int(needs[first] - row.sum()), preference, stock - row)
            taken[first] = row
            stock -= row
            first += 1
    return taken


def deal(pools: Index, counts: npt.NDArray[np.integer]) -> Index:
    """Hand out `counts` (clients × classes) samples from the front of each class's pool; the rest is left."""
    owners = np.full(len(pools.samples), -1, dtype=np.int64)
    for c in range(pools.clients):
        mine = np.repeat(np.arange(len(counts)), counts[:, c])
        owners[pools[c][: len(mine)]] = mine
    return Index.from_owners(owners, len(counts))
