"""Which methods can work when the server sees only the sum of updates (secure aggregation), and which cannot.

Nothing is declared by hand. Selectors are driven in a trial run, and what they take from single updates is read
from their requests. Aggregators get updates whose sum stays the same while the single ones change: whoever gives
another answer then has looked at single updates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.aggregation.base import Aggregated, Aggregator, aggregators
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.core.registry import parameters_of
from muster.selection.base import Ask, Selector, Train, selectors
from muster.selection.combinators import Combinator
from muster.server.disclosures import CLIENTS, PER_ROUND
from muster.server.testing import FakeFederation
from muster.signals.base import Signal
from muster.training.base import algorithms
from muster.updates.filters import Filter, named
from muster.updates.guard import Guard
from muster.updates.table import Updates

#: Rounds of a trial: more than any method's default warm-up.
ROUNDS = 40


@dataclass(frozen=True)
class Verdict:
    """Whether a method works on sums of updates alone; if not, why."""

    method: str
    #: Empty: it does.
    obstacle: str

    @property
    def works(self) -> bool:
        return not self.obstacle


def of_selection(name: str) -> Verdict:
    """The verdict on a selection method with its default options."""
    component = selectors.get(name)
    if isinstance(component, type) and issubclass(component, Combinator):
        return Verdict(name, "as the selectors inside it")
    options = {"clients_per_round": PER_ROUND} if "clients_per_round" in parameters_of(component) else {}
    return Verdict(name, obstacle_in_selection(selectors.build(name, options)))


def of_aggregation(name: str) -> Verdict:
    """The verdict on an aggregation method with its default options."""
    return Verdict(name, obstacle_in_aggregation(aggregators.get(name)()))


def check_secure_aggregation(
    selector: Selector, aggregator: Aggregator, guard: Guard, clients: int, filters: Sequence[Filter] = ()
) -> None:
    """Refuse a run that would need single updates; ConfigError says what needs them."""
    obstacles = {
        type(selector).__name__: obstacle_in_selection(selector, clients),
        type(aggregator).__name__: obstacle_in_aggregation(aggregator),
        "guard.max_norm": "" if guard.max_norm is None else "it measures single updates",
    } | {f"the filter '{name}'": "on the server's side it works on single updates" for name, _ in named(filters)}
    for name, obstacle in obstacles.items():
        if obstacle:
            raise ConfigError(
                f"{name} does not work with secure aggregation: {obstacle}",
                expected="methods that need no more than the sum of the updates",
                fix="choose among those in docs/flower-privacy.md, or set flower.secure_aggregation = false",
            )


def obstacle_in_selection(selector: Selector, clients: int = CLIENTS) -> str:
    """What a selector takes from single updates, as seen in a trial; empty: nothing."""
    trial = FakeFederation(clients, rounds=ROUNDS).run(copy.deepcopy(selector), ROUNDS)
    requests = [request for played in trial for request in played.requests]
    for signal in (
        s for request in requests for s in (request.signals if isinstance(request, Ask) else request.report)
    ):
        if tells_of_update(signal):
            return f"it looks at every client's '{signal.name}', which tells of its update"
    if any(isinstance(request, Train) and request.keep is not None for request in requests):
        return "it decides after training which updates are used"
    return ""


def tells_of_update(signal: Signal) -> bool:
    """It is made of the update, or of a gradient: telling it would disclose what secure aggregation hides."""
    return signal.in_update or "model update" in signal.discloses or signal.name == "gradient"


def obstacle_in_aggregation(aggregator: Aggregator) -> str:
    """What an aggregator takes from single updates, as seen in a trial; empty: nothing."""
    if aggregator.clip_norm is not None:
        return "clip_norm shortens single updates"
    federation = FakeFederation(CLIENTS, sizes=np.full(CLIENTS, 50))
    rng = generator(0, "secure aggregation trial")
    shape = (CLIENTS, federation.spec.size)
    movements, shift = rng.normal(size=shape), 3 * rng.normal(size=shape)
    shift -= shift.mean(axis=0)
    one = _aggregated(aggregator, federation, movements)
    other = _aggregated(aggregator, federation, movements + shift)
    same = np.allclose(one.parameters, other.parameters, atol=1e-4) and np.allclose(one.weights, other.weights)
    return "" if same else "its result depends on single updates, not only on their sum"


def _aggregated(aggregator: Aggregator, federation: FakeFederation, movements: np.ndarray) -> Aggregated:
    """One aggregation by a fresh copy: all clients have the same size, did the same work and report the same."""
    fresh, population = copy.deepcopy(aggregator), federation.population
    fresh.prepare(population)
    ones = np.ones(CLIENTS, dtype=np.int64)
    reported = {signal.name: np.ones((CLIENTS, signal.width(population))) for signal in fresh.reports()}
    extra = {
        vector: movements.astype(np.float32)
        for algorithm in fresh.requires_algorithm or ()
        for vector in getattr(algorithms.get(algorithm), "extra", ())
    }
    updates = Updates.from_movements(
        movements, sizes=federation.sizes, steps=5 * ones, lr=0.1, extra=extra, reports=reported
    )
    return fresh.aggregate(np.zeros(federation.spec.size, dtype=np.float32), updates, federation.spec)
