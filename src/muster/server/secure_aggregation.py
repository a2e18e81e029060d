"""Which methods can work when the server sees only the sum of updates (secure aggregation), and which cannot.

Nothing is declared by hand. The real loop runs on made-up clients, and what selectors take from individual updates
is read from their requests. Aggregators get updates whose sum stays the same while the individual ones change: one
that gives a different answer then has looked at individual updates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from muster.aggregation.base import Aggregator
from muster.core.arrays import Floats, Vector
from muster.core.randomness import generator
from muster.engine.base import Engine
from muster.engine.trial import TrialEngine
from muster.selection.base import Selector
from muster.selection.random import RandomSelection
from muster.server.checks import not_on_sums, obstacle_in_request
from muster.server.loop import Server
from muster.server.trial import CLIENTS, requests_in_trial
from muster.training.base import algorithms
from muster.updates.filters import Filter, named
from muster.updates.guard import Guard


def check_secure_aggregation(
    selector: Selector, aggregator: Aggregator, guard: Guard, engine: Engine, filters: Sequence[Filter] = ()
) -> None:
    """Refuse a run that would need individual updates; ConfigError says what needs them."""
    trial = TrialEngine(engine.population.clients, training=engine.training, algorithm=engine.algorithm)
    obstacles = {
        type(selector).__name__: obstacle_in_selection(selector, trial, aggregator),
        type(aggregator).__name__: obstacle_in_aggregation(aggregator),
        "guard.max_norm": "" if guard.max_norm is None else "it measures individual updates",
    } | {
        f"the filter '{name}'": "on the server's side it acts on individual updates" for name, _ in named(filters)
    }
    for name, obstacle in obstacles.items():
        if obstacle:
            raise not_on_sums(name, obstacle)


def obstacle_in_selection(
    selector: Selector, engine: TrialEngine | None = None, aggregator: Aggregator | None = None
) -> str:
    """What a selector takes from individual updates, as seen in a trial; empty: nothing."""
    requests = requests_in_trial(selector, engine, aggregator)
    return next((why for _, request in requests if (why := obstacle_in_request(request))), "")


def obstacle_in_aggregation(aggregator: Aggregator) -> str:
    """What an aggregator takes from individual updates, as seen in a trial; empty: nothing."""
    if aggregator.clip_norm is not None:
        return "clip_norm shortens individual updates"
    if aggregator.max_weight is not None:
        return "max_weight takes weight from individual updates"
    if aggregator.keeps_updates:
        return "it keeps the last update of every client"
    rng = generator(0, "secure aggregation trial")
    shape = (CLIENTS, TrialEngine(CLIENTS).population.spec.size)
    movements, shift = rng.normal(size=shape), 3 * rng.normal(size=shape)
    shift -= shift.mean(axis=0)
    one, one_weights = _aggregated(aggregator, movements)
    other, other_weights = _aggregated(aggregator, movements + shift)
    same = np.allclose(one, other, atol=1e-4) and np.allclose(one_weights, other_weights)
    return "" if same else "its result depends on individual updates, not only on their sum"


def _aggregated(aggregator: Aggregator, movements: Floats) -> tuple[Vector, Floats]:
    """A copy's model and weights after a round in which all clients have the same size, steps and reports."""
    required = aggregator.requires_algorithm
    population = TrialEngine(CLIENTS).population
    engine = TrialEngine(
        CLIENTS,
        sizes=np.full(CLIENTS, 50),
        movements=movements,
        script={s.name: np.ones((CLIENTS, s.width(population))) for s in aggregator.reports()},
        algorithm=None if required is None else algorithms.build(required[0], {}),
    )
    result = Server(RandomSelection(clients_per_round=CLIENTS), copy.deepcopy(aggregator), engine).run(1)
    (training,) = result.records[0].trainings
    weights = np.zeros(CLIENTS)
    weights[training.clients] = training.weights
    return result.parameters, weights
