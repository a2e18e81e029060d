"""Inequality: of participation (how evenly, how widely, how regularly clients have taken part) and of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import entropy

from muster.core.arrays import Ints


def gini(counts: np.ndarray[Any, Any]) -> float:
    """Gini coefficient: 0 where all counts are equal (or zero), towards 1 where one client has everything.

    Of participation it is taken over rounds: a client that trains twice in a round has taken part once.
    """
    ascending = np.sort(np.asarray(counts, dtype=np.float64))
    total = ascending.sum()
    if not total > 0:
        return 0.0
    clients = len(ascending)
    ranks = np.arange(1, clients + 1)
    return float(2 * (ranks @ ascending) / (clients * total) - (clients + 1) / clients)


def jain(counts: np.ndarray[Any, Any]) -> float:
    """Jain's index: 1 where all counts are equal (or zero), 1/clients where one client has everything."""
    counts = np.asarray(counts, dtype=np.float64)
    squares = float(counts @ counts)
    return float(counts.sum() ** 2 / (len(counts) * squares)) if squares > 0 else 1.0


def evenness(counts: np.ndarray[Any, Any]) -> float:
    """Entropy of the counts over its largest possible value; 1 for a single client or no participation at all."""
    counts = np.asarray(counts, dtype=np.float64)
    if len(counts) < 2 or not counts.sum() > 0:
        return 1.0
    return float(entropy(counts) / np.log(len(counts)))


def coverage(counts: np.ndarray[Any, Any]) -> float:
    """Share of the clients that took part at least once."""
    return float(np.mean(np.asarray(counts) > 0)) if len(counts) else 0.0


def counts_of(selections: Sequence[Ints], clients: int) -> Ints:
    """In how many rounds each client took part; `selections` holds the ids of each round, repeats allowed."""
    client, _ = _participations(selections)
    return np.bincount(client, minlength=clients)


def longest_waits(selections: Sequence[Ints], clients: int) -> Ints:
    """For every client the longest gap between two consecutive participations.

    The run's two ends, rounds −1 and R, count as participations: a client that never took part has R + 1.
    """
    client, round = _participations(selections)
    everyone = np.arange(clients)
    client = np.concatenate([everyone, client, everyone])
    round = np.concatenate([np.full(clients, -1), round, np.full(clients, len(selections))])
    order = np.lexsort((round, client))
    client, round = client[order], round[order]
    same = client[1:] == client[:-1]
    longest = np.zeros(clients, dtype=np.int64)
    np.maximum.at(longest, client[1:][same], np.diff(round)[same])
    return longest


def summary(selections: Sequence[Ints], clients: int) -> dict[str, float]:
    """All of the above for one run: Gini, Jain, evenness, coverage, longest wait and its 95th percentile."""
    counts, waits = counts_of(selections, clients), longest_waits(selections, clients)
    return {
        "gini": gini(counts),
        "jain": jain(counts),
        "evenness": evenness(counts),
        "coverage": coverage(counts),
        "longest_wait": float(waits.max(initial=0)),
        "wait_95": float(np.percentile(waits, 95)) if clients else 0.0,
    }


def _participations(selections: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Client and round of every participation, by client, then round; several trainings in a round count once."""
    ids = [np.unique(np.asarray(chosen, dtype=np.int64)) for chosen in selections]
    client = np.concatenate([*ids, np.empty(0, dtype=np.int64)])
    round = np.repeat(np.arange(len(ids)), [len(chosen) for chosen in ids])
    order = np.lexsort((round, client))
    return client[order], round[order]
