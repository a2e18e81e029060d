"""What a selector asks every client once and keeps."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from muster.arrays import Floats
from muster.component import grown
from muster.selection.base import Ask, Request, View
from muster.signals.base import Replies, Signal


def ask_once(signal: Signal, known: Floats, width: int, fed: View) -> Generator[Request, Replies, Floats]:
    """`known` with a row of `width` numbers for every client, after asking those whose row is missing (NaN).

    Clients that do not answer, or not with numbers, keep NaN and are asked again in the next round.
    """
    known = grown(known if len(known) else np.zeros((0, width)), fed.clients, np.nan)
    unknown = fed.available[np.isnan(known[fed.available, 0])]
    if len(unknown):
        replies = (yield Ask(unknown, (signal,))).finite(signal.name)
        known[replies.clients] = replies[signal.name].reshape(len(replies), width)
    return known


def ask_histograms(signal: Signal, known: Floats, fed: View) -> Generator[Request, Replies, Floats]:
    """As `ask_once`, for label histograms: noise may have made counts negative, or left none at all."""
    known = yield from ask_once(signal, known, fed.classes, fed)
    known = np.maximum(known, 0.0)
    known[known.sum(axis=1) == 0] = np.nan
    return known
