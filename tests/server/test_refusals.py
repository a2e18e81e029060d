"""Updates that an aggregation method cannot use are left out and recorded, as those that the guard refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

import muster
from muster.aggregation.base import Aggregator, aggregators
from muster.aggregation.fednova import FedNova
from muster.aggregation.qfedavg import QFedAvg
from muster.core.errors import ConfigError
from muster.engine.base import Engine, Failed
from muster.engine.wrapped import WrappedEngine
from muster.experiment.parts import build_parts
from muster.pacing.deadline import Deadline
from muster.selection.base import Plan, Selector, Train, View
from muster.server.loop import Server
from muster.server.result import Result
from muster.updates.table import Updates

COHORT, SPOILED = (0, 1, 2, 3), 2
WEIGHTS = {"weights": np.array([1.0, 2.0, 3.0, 4.0])}
KEEP = {"keep": lambda replies: np.ones(len(replies), dtype=np.bool_)}


@dataclass
class Fixed(Selector):
    """Trains the same clients each round."""

    options: dict

    def round(self, fed: View) -> Plan:
        yield Train(np.array(COHORT), **self.options)


class Various(Selector):
    """Trains all that are free, the higher their id the faster and the more tightly held."""

    def round(self, fed: View) -> Plan:
        yield Train(fed.available, lr_factors=1 + fed.available / 10, pull_factors=fed.available.astype(float))


class Tampering(WrappedEngine):
    """An engine on which one client reports another number, or fails."""

    def __init__(self, inner: Engine, signal: str, value: float | None) -> None:
        super().__init__(inner)
        self._signal, self._value = signal, value

    def collect(self) -> Iterator[Updates | Failed]:
        for part in self.inner.collect():
            rows = np.flatnonzero(part.clients == SPOILED)
            if not len(rows):
                yield part
            elif self._value is None:
                yield Failed(SPOILED, "gone")
                if len(part.clients) > 1:
                    yield part.rows(part.clients != SPOILED)
            else:
                told = part.reports[self._signal].copy()
                told[rows] = self._value
                yield replace(part, reports={**part.reports, self._signal: told})


def run(tiny, aggregator: Aggregator, value: float | None, options: dict, engine: str) -> Result:
    parts = build_parts(tiny(engine={"kind": engine}), workers=0)
    (signal,) = aggregator.reports()
    tampering = Tampering(parts.engine, signal.name, value)
    return Server(Fixed(options), aggregator, tampering).run(2)


@pytest.mark.parametrize("engine", ["inline", "vectorised"])
@pytest.mark.parametrize("options", [{}, KEEP], ids=["stream", "matrix"])
@pytest.mark.parametrize("q", [1.0, 15.0])
@pytest.mark.parametrize("loss", [1e15, math.nan, math.inf])
def test_a_loss_without_use_is_left_out_of_qfedavg(tiny, loss, q, options, engine) -> None:
    result = run(tiny, QFedAvg(q=q), loss, options, engine)
    for record in result.records:
        why = "cannot weight its loss" if loss < math.inf else "its 'start_loss' is"
        assert why in record.trainings[0].rejected[SPOILED]
        assert record.trainings[0].clients == [0, 1, 3]
    without = run(tiny, QFedAvg(q=q), None, options, engine)
    np.testing.assert_array_equal(result.parameters, without.parameters)


@pytest.mark.parametrize("options", [{}, KEEP, WEIGHTS], ids=["stream", "matrix", "weights of the selector"])
@pytest.mark.parametrize("work", [0.0, math.nan, -3.0, 1e-6, 1e17, 8.999])
def test_a_lie_about_local_work_never_counts_in_fednova(tiny, work, options) -> None:
    """It is divided by: a millionth of the true work would count a million times."""
    result = run(tiny, FedNova(), work, options, "inline")
    why = "its 'local_progress' is " + (f"{work:g}, but its steps amount to 9" if work >= 0 else "")
    assert why in result.records[0].trainings[0].rejected[SPOILED]
    assert result.records[0].trainings[0].clients == [0, 1, 3]
    without = run(tiny, FedNova(), None, options, "inline")
    np.testing.assert_array_equal(result.parameters, without.parameters)


@pytest.mark.parametrize("engine", ["inline", "vectorised"])
@pytest.mark.parametrize("credit", ["batches", "epoch"])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_honest_work_is_believed_after_a_probe(tiny, engine, credit, optimizer_state) -> None:
    probe = {"credit": credit, "optimizer_state": optimizer_state}
    experiment = tiny(
        selection={"method": "probe-fairness", "clients_per_round": 4, **probe},
        aggregation={"method": "fednova"},
        algorithm={"method": "fedprox", "mu": 0.1},
        training={"lr": 0.05, "momentum": 0.9, "nesterov": True, "epochs": 2, "weight_decay": 0.01},
        engine={"kind": engine},
    )
    result = muster.run(experiment, workers=0)
    assert not result.rejected
    assert all(len(record.trainings[0].clients) == 4 for record in result.records)


def test_honest_work_is_believed_in_late_answers_and_with_factors_of_ones_own(tiny) -> None:
    """Of rounds with other learning rates, and of clients with other rates and strengths."""
    experiment = tiny(
        rounds=6,
        devices={"method": "lognormal"},
        algorithm={"method": "fedprox", "mu": 0.5},
        training={"lr": 0.05, "momentum": 0.9, "schedule": "exponential", "decay": 0.7},
    )
    parts = build_parts(experiment, workers=0)
    pacing = Deadline(quantile=0.5, late="use")
    server = Server(Various(), FedNova(), parts.engine, devices=parts.devices, pacing=pacing)
    result = server.run(6)
    assert not result.rejected
    assert any(any(record.trainings[0].flown.staleness) for record in result.records)


def test_a_refused_client_is_remembered_as_failed_and_has_cost_as_much(tiny) -> None:
    result = run(tiny, QFedAvg(), math.nan, {}, "inline")
    assert [(round, client) for round, client, _ in result.rejected] == [(1, SPOILED), (2, SPOILED)]
    assert (result.history.trainings[SPOILED], result.history.failures[SPOILED]) == (0, 2)
    sound = run(tiny, QFedAvg(), 1.0, {}, "inline")
    assert result.ledger.rounds[0].bytes_up == sound.ledger.rounds[0].bytes_up


@pytest.mark.parametrize("method", aggregators.names())
def test_weights_that_are_all_zero_are_the_same_error_everywhere(tiny, method) -> None:
    needed = aggregators.build(method, {}).requires_algorithm
    changes = {"algorithm": {"method": needed[0]}} if needed else {}
    # Some compare clients with samples that the server keeps back.
    parts = build_parts(tiny(data={"source": "digits", "validation": 50}, **changes), workers=0)
    server = Server(Fixed({"weights": np.zeros(4)}), aggregators.build(method, {}), parts.engine)
    with pytest.raises(ConfigError, match="weights that are all zero"):
        server.run(1)


@pytest.mark.parametrize(
    ("training", "algorithm", "message"),
    [
        ({"optimizer": "adam"}, "plain", "fednova .* adam has no such number"),
        ({"optimizer": "adam"}, "fedprox", "fednova .* adam has no such number"),
        ({"momentum": 0.9}, "continued", "momentum continues from their last training"),
    ],
)
def test_fednova_refuses_optimisers_it_cannot_count(tiny, training, algorithm, message) -> None:
    made = tiny(training=training, algorithm={"method": algorithm}, aggregation={"method": "fednova"})
    parts = build_parts(made, workers=0)
    with pytest.raises(ConfigError, match=message):
        Server(Fixed({}), FedNova(), parts.engine).check(1)


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_fednova_takes_every_kind_of_sgd(tiny, training) -> None:
    parts = build_parts(tiny(training=training, algorithm={"method": "fedprox"}), workers=0)
    Server(Fixed({}), FedNova(), parts.engine).check(1)
