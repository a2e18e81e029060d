"""What a selector asks every client once and keeps: an array with one row per client, NaN while unknown."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from muster.core.arrays import Bools, Floats
from muster.core.component import grown
from muster.selection.base import Ask, Request, View
from muster.signals.base import Replies, Signal


def ask_once(signal: Signal, known: Floats, fed: View) -> Generator[Request, Replies, Floats]:
    """`known` with a row for every client, after asking the available ones whose row is missing.

    Clients that do not answer, or not with numbers, are asked again in the next round. The rows are as wide as the
    first answers.
    """
    known = grown(known, fed.clients, np.nan)
    unknown = fed.available[~told(known)[fed.available]]
    if len(unknown):
        replies = (yield Ask(unknown, (signal,))).finite(signal.name)
        if len(replies):
            rows = replies[signal.name].reshape(len(replies), -1)
            known = known if known.shape[1] else np.full((fed.clients, rows.shape[1]), np.nan)
            known[replies.clients] = rows
    return known


def ask_histograms(signal: Signal, known: Floats, fed: View) -> Generator[Request, Replies, Floats]:
    """As `ask_once`, for label histograms: rows that do not even add up to half a sample tell nothing."""
    known = yield from ask_once(signal, known, fed)
    known = np.maximum(known, 0.0)
    known[known.sum(axis=1) < 0.5] = np.nan
    return known


def told(known: Floats) -> Bools:
    """Which rows are known."""
    return np.asarray(np.isfinite(known[:, :1]).any(axis=1))
