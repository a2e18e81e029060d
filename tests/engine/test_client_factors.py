"""Learning rates and proximal strengths that a selector gives to individual clients, from request to update."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.base import Aggregated
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.feddyn import FedDyn
from muster.aggregation.median import Median
from muster.core.arrays import Floats
from muster.core.errors import ConfigError
from muster.engine.base import TrainOrder
from muster.engine.task import Place
from muster.experiment.parts import build_parts
from muster.selection.base import Plan, Selector, Train, View
from muster.server.loop import Server
from muster.signals.gradients import MeanGradient
from muster.signals.progress import LocalProgress
from muster.updates.table import Updates

REPORT = (MeanGradient(part="final_layer"), LocalProgress())


@dataclass
class Levelling(Selector):
    """Small clients learn faster and are held back more; others are as usual."""

    pulled: bool = True

    def needs(self) -> tuple[Any, ...]:
        return REPORT

    def round(self, fed: View) -> Plan:
        chosen = fed.rng.permutation(fed.sample(6))
        small = fed.sizes[chosen] < np.median(fed.sizes)
        replies = yield Train(
            chosen,
            REPORT,
            lr_factors=np.where(small, 2.0, 0.5),
            pull_factors=np.where(small, 3.0, 0.0) if self.pulled else None,
        )
        assert replies.clients.tolist() == sorted(chosen.tolist())


@dataclass
class Fixed(Selector):
    clients: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def round(self, fed: View) -> Plan:
        yield Train(np.array(self.clients), **self.options)


def served(tiny, selector: Selector, aggregator: Any = None, **changes: Any) -> muster.Result:
    parts = build_parts(tiny(**changes), workers=0)
    return Server(selector, aggregator or FedAvg(), parts.engine).run(2)


PROXIMAL = {"algorithm": {"method": "fedprox", "mu": 0.2}}


@pytest.mark.parametrize("aggregation", ["fedavg", "median", "fednova", "qfedavg"])
def test_a_selector_with_factors_runs_on_both_engines(tiny, aggregation):
    experiment = tiny(selection=Levelling(), aggregation={"method": aggregation}, **PROXIMAL)
    together, by_two = (muster.run(experiment, workers=workers) for workers in (0, 2))
    assert np.array_equal(together.parameters, by_two.parameters)
    one_by_one = muster.run(replace(experiment, engine="inline"))
    assert one_by_one.selections == together.selections
    np.testing.assert_allclose(together.parameters, one_by_one.parameters, atol=1e-4)
    usual = muster.run(tiny(selection=Levelling(pulled=False), aggregation={"method": aggregation}, **PROXIMAL))
    assert np.abs(usual.parameters - together.parameters).max() > 1e-3, "pull_factors did nothing"


def test_without_a_pull_fedprox_is_plain(tiny):
    none = Fixed((0, 3, 5), {"pull_factors": np.zeros(3)})
    assert np.array_equal(served(tiny, none, **PROXIMAL).parameters, served(tiny, Fixed((0, 3, 5))).parameters)


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
def test_reports_and_updates_know_the_clients_own_rate(tiny, kind):
    """One local step: the mean gradient does not depend on the rate, the movement is proportional to it."""
    engine = build_parts(tiny(engine=kind, training={"steps": 1}), workers=0).engine
    factors = np.array([4.0, 1.0, 0.5])
    request = TrainOrder(np.array([7, 2, 4]), engine.initial_parameters(), Place(0, 0, 0), 0.1, REPORT)
    first = [deepcopy(row) for part in engine.train(request) for row in part]
    usual = {int(a.clients[0]): (a.movements[0].copy(), a.reports["mean_gradient"]) for a in first}
    for answer in (row for part in engine.train(replace(request, lr_factors=factors)) for row in part):
        client = int(answer.clients[0])
        movement, gradient = usual[client]
        factor = factors[[7, 2, 4].index(client)]
        np.testing.assert_allclose(answer.movements[0], factor * movement, rtol=1e-2, atol=1e-6)
        np.testing.assert_allclose(answer.reports["mean_gradient"], gradient, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("whole", [False, True])
def test_aggregators_see_every_clients_rate(tiny, whole):
    seen: dict[int, tuple[float, float]] = {}

    class Looking(FedAvg):
        def weight(self, updates: Updates) -> Floats:
            rates = zip(updates.lr.tolist(), updates.lr_factors.tolist(), strict=True)
            seen.update(zip(updates.clients.tolist(), rates, strict=True))
            return super().weight(updates)

    options: dict[str, Any] = {"lr_factors": [3.0, 1.0, 0.5]}
    if whole:
        options["keep"] = lambda replies: replies.clients > 0
    served(tiny, Fixed((5, 0, 2), options), Looking())
    rates = {client: lr for client, (lr, _) in seen.items()}
    assert rates == pytest.approx({5: 0.3, 2: 0.05} | ({} if whole else {0: 0.1}))
    assert {client: factor for client, (_, factor) in seen.items()}.items() <= {5: 3.0, 0: 1.0, 2: 0.5}.items()


def test_the_progress_of_a_client_knows_its_rate_and_its_pull(tiny):
    progress: list[float] = []

    class Looking(Median):
        def reports(self):
            return (LocalProgress(),)

        def aggregate(self, current, updates, spec) -> Aggregated:
            progress.extend(np.ravel(updates.reports["local_progress"]).tolist())
            return super().aggregate(current, updates, spec)

    for kind in ("inline", "vectorised"):
        parts = build_parts(tiny(engine=kind, training={"steps": 3}, **PROXIMAL), workers=0)
        options = {"lr_factors": np.array([2.0, 1.0, 1.0]), "pull_factors": np.array([5.0, 1.0, 0.0])}
        Server(Fixed((0, 1, 2), options), Looking(), parts.engine).run(1)
    # shrink = lr · μ · factors: 0.1 · 0.2 · 10, 0.1 · 0.2, 0
    expected = [sum((1 - shrink) ** n for n in range(3)) for shrink in (0.2, 0.02, 0.0)]
    assert progress == pytest.approx(expected * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_factors": np.ones(3)}, "3 lr_factors for 2 clients"),
        ({"lr_factors": np.ones((2, 2))}, r"lr_factors of shape \(2, 2\) for 2 clients"),
        ({"lr_factors": 0.5}, r"lr_factors of shape \(\) for 2 clients"),
        ({"lr_factors": np.array([1.0, 0.0])}, "above zero"),
        ({"lr_factors": np.array([1.0, -1.0])}, "above zero"),
        ({"lr_factors": np.array([1.0, math.nan])}, "above zero"),
        ({"lr_factors": np.array([1.0, math.inf])}, "finite"),
        ({"pull_factors": np.ones(1)}, "1 pull_factors for 2 clients"),
        ({"pull_factors": np.array([1.0, -0.1])}, "none negative"),
        ({"pull_factors": np.array([math.nan, 1.0])}, "finite"),
    ],
)
def test_bad_factors_are_refused(tiny, options, message):
    with pytest.raises(ConfigError, match=message):
        served(tiny, Fixed((0, 1), options), **PROXIMAL)


@pytest.mark.parametrize("algorithm", ["plain", "moon", "continued", "feddyn"])
def test_a_pull_that_nobody_would_feel_is_refused(tiny, algorithm):
    # FedDyn's strength is also part of what its clients and its server keep: it is the same for everybody.
    aggregator = FedDyn() if algorithm == "feddyn" else None
    with pytest.raises(ConfigError, match=r"pull_factors, but the local algorithm \w+ has no proximal strength"):
        served(tiny, Fixed((0, 1), {"pull_factors": np.ones(2)}), aggregator, algorithm={"method": algorithm})
