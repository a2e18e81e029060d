"""Trying a method: the real loop runs on made-up clients, and what the selector asks of them is recorded."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from muster.aggregation.base import Aggregator
from muster.aggregation.fedavg import FedAvg
from muster.core.registry import parameters_of
from muster.engine.trial import TrialEngine
from muster.selection.base import Request, Selector, selectors
from muster.selection.combinators import Combinator
from muster.server.loop import Observer, Server

#: Size of a trial: more rounds than any method's default warm-up.
ROUNDS, CLIENTS, PER_ROUND = 40, 30, 5


@dataclass
class Overheard(Observer):
    """Every request of a run, with its round."""

    requests: list[tuple[int, Request]] = field(default_factory=list)

    def requested(self, request: Request, round: int) -> None:
        self.requests.append((round, request))


def requests_in_trial(
    selector: Selector, engine: TrialEngine | None = None, aggregator: Aggregator | None = None
) -> list[tuple[int, Request]]:
    """What a copy of the selector asks for, round by round, of clients with made-up numbers."""
    overheard = Overheard()
    parts = copy.deepcopy((selector, aggregator or FedAvg()))
    Server(*parts, engine or TrialEngine(CLIENTS), observers=[overheard]).run(ROUNDS)
    return overheard.requests


def selector_with_defaults(name: str) -> Selector | None:
    """A selection method with its default options, for a trial; None: it is made of others, which decide."""
    component = selectors.get(name)
    if isinstance(component, type) and issubclass(component, Combinator):
        return None
    options = {"clients_per_round": PER_ROUND} if "clients_per_round" in parameters_of(component) else {}
    return selectors.build(name, options)
