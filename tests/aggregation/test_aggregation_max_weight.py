"""`max_weight`: whatever a client states, it has no more than a share of the weights; elsewhere it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.base import aggregators
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.selection.base import Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.selection.size_weighted import SizeWeighted
from muster.server.loop import Server
from muster.training.base import algorithms

SIZES = [100, 120, 10**9, 80, 90, 110, 95, 105]
BOUNDED = [name for name in aggregators if aggregators.get(name).bounds_weights]  # type: ignore[attr-defined]
OTHERS = [name for name in aggregators if name not in BOUNDED]


def ran(method: str, sizes: list[int] = SIZES, **options: Any) -> muster.Result:
    aggregator = aggregators.build(method, options)
    needed = aggregator.requires_algorithm
    algorithm = None if needed is None else algorithms.build(needed[0], {})
    script = {s.name: np.ones(len(sizes)) for s in aggregator.reports()}
    engine = TrialEngine(len(sizes), sizes=sizes, algorithm=algorithm, script=script)
    return Server(RandomSelection(clients_per_round=7), aggregator, engine).run(4)


@pytest.mark.parametrize("method", BOUNDED)
def test_nobody_has_more_than_the_share(method):
    for record in ran(method, max_weight=0.25).records:
        (training,) = record.trainings
        assert sum(training.weights) == pytest.approx(1)
        # The geometric median's weights are those of the median, which starts from the capped ones.
        assert max(training.weights) <= (1 if method == "geometric-median" else 0.25 + 1e-9)


@pytest.mark.parametrize("method", OTHERS)
def test_where_there_is_no_cap_a_stated_count_has_no_weight(method):
    """A method that weights clients by what they state lets its users bound that."""
    honest = [*SIZES[:2], 100, *SIZES[3:]]
    for stated, true in zip(ran(method).records, ran(method, sizes=honest).records, strict=True):
        assert stated.trainings[0].clients == true.trainings[0].clients
        np.testing.assert_allclose(stated.trainings[0].weights, true.trainings[0].weights)


def test_one_that_states_a_huge_count_has_everything_without_it():
    assert max(max(r.trainings[0].weights) for r in ran("fedavg").records) > 0.999
    assert max(max(r.trainings[0].weights) for r in ran("fedavg", max_weight=0.2).records) == pytest.approx(0.2)


class Plainly(Selector):
    """Wants plain averages, whatever the run aggregates with, as FedDiverse does while it learns who has what."""

    def gives_fedavg(self) -> bool:
        return True

    def round(self, fed: View) -> Plan:
        yield Train(fed.available, fedavg=True)


def test_the_share_holds_where_a_selector_wants_a_plain_average():
    engine = TrialEngine(len(SIZES), sizes=SIZES)
    result = Server(Plainly(), aggregators.build("fedadam", {"max_weight": 0.25}), engine).run(1)
    assert max(result.records[0].trainings[0].weights) == pytest.approx(0.25)


@pytest.mark.parametrize("method", BOUNDED)
def test_a_cap_that_nobody_reaches_changes_nothing(method):
    same = ran(method, max_weight=1.0), ran(method)
    np.testing.assert_allclose(same[0].parameters, same[1].parameters, atol=1e-6)


def test_the_model_is_the_mean_with_the_capped_weights():
    movements = np.random.default_rng(0).normal(size=(len(SIZES), TrialEngine().population.spec.size))
    engine = TrialEngine(len(SIZES), sizes=SIZES, movements=movements)
    aggregator = aggregators.build("fedavg", {"max_weight": 0.3})
    result = Server(RandomSelection(clients_per_round=len(SIZES)), aggregator, engine).run(1)
    others = np.array(SIZES, dtype=float)
    others[2] = 0
    weights = 0.7 * others / others.sum()
    weights[2] = 0.3
    np.testing.assert_allclose(result.parameters, weights @ movements, atol=1e-5)


def test_counting_twice_does_not_get_around_it():
    engine = TrialEngine(len(SIZES), sizes=SIZES)
    twice = SizeWeighted(clients_per_round=6, replace=True, equal_weights=False)
    result = Server(twice, aggregators.build("fedavg", {"max_weight": 0.5}), engine).run(6)
    for record in result.records:
        weights = record.trainings[0].weights
        assert max(weights) <= max(0.5, 1 / len(weights)) + 1e-9


@pytest.mark.parametrize("method", OTHERS)
def test_it_is_refused_where_clients_are_not_weighed_by_what_they_state(method):
    with pytest.raises(ConfigError, match="max_weight"):
        ran(method, max_weight=0.5)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_is_a_share(share):
    with pytest.raises(ConfigError, match="max_weight"):
        ran("fedavg", max_weight=share)


def test_warm_up_rounds_of_a_selector_are_capped_too(tiny):
    made = tiny(
        selection={"method": "feddiverse", "clients_per_round": 4, "biased_steps": 2, "attribute_steps": 2},
        aggregation={"method": "fedavg", "max_weight": 0.1},
    )
    first = muster.run(made, workers=0).records[0].trainings[0]
    assert len(first.clients) == 12
    assert max(first.weights) <= 0.1 + 1e-9
