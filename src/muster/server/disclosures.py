"""What leaves the clients under every method, and how often: observed in a trial run with made-up numbers.

Nothing is declared twice: the real loop runs for a few rounds on made-up clients, and requests are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.aggregation.base import aggregators
from muster.core.arrays import Ints
from muster.selection.base import Ask, Selector
from muster.server.checks import signals_of
from muster.server.trial import CLIENTS, ROUNDS, requests_in_trial, selector_with_defaults
from muster.signals.base import Signal
from muster.training.base import algorithms


@dataclass(frozen=True)
class Disclosure:
    """One kind of information that a method takes from clients, besides the model update."""

    method: str
    signal: str
    what: str
    how_often: str


def of_selection(name: str) -> list[Disclosure]:
    """What a selection method asks and has reported with its default options; empty: nothing."""
    selector = selector_with_defaults(name)
    if selector is None:
        return [Disclosure(name, "–", "what the selectors inside it disclose", "as they do")]
    return [
        Disclosure(name, signal.name, signal.discloses, often)
        for signal, often in _observed(selector)
        if not signal.in_update
    ]


def of_aggregation(name: str) -> list[Disclosure]:
    """What an aggregation method has reported, and the vectors that its clients send besides the update."""
    aggregator = aggregators.get(name)()
    rows = [
        Disclosure(name, signal.name, signal.discloses, "with every update")
        for signal in aggregator.reports()
        if not signal.in_update
    ]
    for algorithm in aggregator.requires_algorithm or ():
        for vector in getattr(algorithms.get(algorithm), "extra", ()):
            what = "a second vector of the model's size: as much as another update"
            rows.append(Disclosure(name, vector, what, "with every update"))
    return rows


@dataclass
class _Use:
    """How a signal was used in the trial."""

    times: Ints
    rounds: set[int]

    def words(self, asked: bool) -> str:
        once = self.times.max() == 1
        if not asked:
            return "with a client's first update" if once else "with every update"
        if once:
            return "once"
        when = "every round" if len(self.rounds) == ROUNDS else f"in {len(self.rounds)} of {ROUNDS} rounds"
        everybody = self.times.min() >= len(self.rounds)
        return f"{when}, from {'every client' if everybody else 'candidates'}"


def _observed(selector: Selector) -> Iterator[tuple[Signal, str]]:
    """Every signal that a trial run uses, with how often it is asked or reported."""
    uses: dict[tuple[Signal, bool], _Use] = {}
    for round, request in requests_in_trial(selector):
        asked = isinstance(request, Ask)
        for signal in signals_of(request):
            nothing = _Use(np.zeros(CLIENTS, dtype=np.int64), set())
            use = uses.setdefault((signal, asked), nothing)
            use.times[request.clients] += 1
            use.rounds.add(round)
    for (signal, asked), use in uses.items():
        yield signal, use.words(asked)
