"""What every aggregation makes of answers to older models, through the real server."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest

import muster
from muster.aggregation.base import Aggregated, Aggregator, aggregators
from muster.aggregation.bulyan import Bulyan
from muster.aggregation.ca2fl import CA2FL
from muster.aggregation.fedavg import FedAvg
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.base import TrainOrder
from muster.engine.task import Place
from muster.engine.trial import TrialEngine
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.over_select import OverSelect
from muster.selection.random import RandomSelection
from muster.server import Server
from muster.server.loop import Observer
from muster.training.base import LocalAlgorithm, algorithms
from muster.updates.table import Updates
from muster.world.devices.base import Devices

CLIENTS = 16
LATE = sorted(name for name in aggregators if aggregators.build(name, {}).stale is not None)
REFUSED = sorted(set(aggregators.names()) - set(LATE))
#: So that few answers are enough.
OPTIONS = {"krum": {"too_few": "median"}, "multi-krum": {"too_few": "median"}, "bulyan": {"attackers": 0}}
#: Parameters, two running statistics, one counter.
SPEC = ParameterSpec(
    (SpecEntry("weight", (3,), 0, 3),), (SpecEntry("mean", (2,), 3, 5),), (SpecEntry("steps", (1,), 5, 6),)
)


class Measuring(TrialEngine):
    """Clients that find their own statistics, whatever they start from: client k finds 1 + k/10 and 2 + k/10."""

    def __init__(self, broken: int | None = None, algorithm: LocalAlgorithm | None = None) -> None:
        super().__init__(CLIENTS, spec=SPEC, sizes=np.full(CLIENTS, 50), algorithm=algorithm)
        self._broken = broken

    def initial_parameters(self) -> np.ndarray:
        return np.array([0, 0, 0, 9, 9, 0], dtype=np.float32)

    def _answers(self, order: TrainOrder, clients: np.ndarray) -> Updates:
        found = np.array([1.0, 2.0]) + clients[:, None] / 10
        self._rows[:, 3:5] = found - order.parameters[3:5]
        self._rows[:, 5] = 100 + clients
        if self._broken is not None:
            self._rows[clients == self._broken] = np.nan
        return super()._answers(order, clients)

    def root_movement(self, parameters: np.ndarray, place: Place, lr: float) -> np.ndarray:
        """The server finds what client 0 finds."""
        movement = super().root_movement(parameters, place, lr)
        movement[3:5], movement[5] = np.array([1.0, 2.0]) - parameters[3:5], 100
        return movement


def devices(seed: int = 3) -> Devices:
    return Devices(
        np.random.default_rng(seed).lognormal(3, 1.0, CLIENTS), np.full(CLIENTS, 1e12), np.full(CLIENTS, 1e12)
    )


def build(name: str) -> Aggregator:
    return aggregators.build(name, OPTIONS.get(name, {}))


def server(aggregator: Aggregator, engine: TrialEngine | None = None, **options) -> Server:
    # Bulyan wants three answers at least, whatever it withstands.
    pacing = options.pop("pacing", Buffered(in_flight=12, k=3 if isinstance(aggregator, Bulyan) else 2))
    selector = RandomSelection(clients_per_round=2)
    return Server(selector, aggregator, engine or Measuring(), devices=devices(), pacing=pacing, **options)


def test_who_uses_late_answers_and_who_does_not() -> None:
    assert REFUSED == ["fedatt", "feddyn", "qfedavg", "scaffold"]
    models = {name for name in LATE if aggregators.build(name, {}).stale == "models"}
    assert models == {"fedasync", "simagg", "simprox"}


@pytest.mark.parametrize("name", LATE)
def test_running_statistics_stay_between_the_clients_and_counters_are_copied(name) -> None:
    """Were movements added up, clients that started together would move the statistics several times as far."""
    running = server(build(name))
    result = running.run(25)
    ages = [age for record in result.records for age in record.trainings[0].flown.staleness]
    assert max(ages) > 3
    statistics = result.parameters[3:5]
    assert (statistics >= [1.0, 2.0]).all()
    assert (statistics <= [1.0 + (CLIENTS - 1) / 10, 2.0 + (CLIENTS - 1) / 10]).all()
    last = result.records[-1].trainings[0]
    heaviest = [
        client for client, weight in zip(last.clients, last.weights, strict=True) if weight == max(last.weights)
    ]
    aggregator = running.aggregator
    copied = [0] if aggregator.needs_root else heaviest if aggregator.streaming else last.clients
    assert result.parameters[5] - 100 in copied


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "refl", "simprox"])
def test_running_statistics_are_the_weighted_mean_of_what_clients_found(name) -> None:
    result = server(build(name)).run(25)
    last = result.records[-1].trainings[0]
    assert max(last.flown.staleness) > 0
    found = np.array([1.0, 2.0]) + np.array(last.clients)[:, None] / 10
    np.testing.assert_allclose(result.parameters[3:5], np.array(last.weights) @ found, rtol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("pacing", [Buffered(in_flight=12, k=2), Deadline(seconds=1.0, late="use")])
def test_who_cannot_is_refused_before_round_1_and_told_why(name, pacing) -> None:
    aggregator = build(name)
    needed = aggregator.requires_algorithm
    engine = Measuring(algorithm=algorithms.build(needed[0], {}) if needed else None)
    reason = "must move together" if needed else f"{type(aggregator).__name__} cannot: .* because it is older"
    with pytest.raises(ConfigError, match=f"uses late answers, but .*{reason}"):
        server(aggregator, engine, pacing=pacing).check(3)


@pytest.mark.parametrize("name", ["fedatt", "qfedavg"])
@pytest.mark.parametrize("pacing", [OverSelect(1.5), Deadline(seconds=100.0)])
def test_a_pacing_that_discards_late_answers_suits_everybody(name, pacing) -> None:
    server(build(name), pacing=pacing).check(3)


@dataclass
class Undecided(Aggregator):
    """An equal mean, by somebody who has not thought of asynchrony."""

    def aggregate(self, current: np.ndarray, updates: Updates, spec: ParameterSpec) -> Aggregated:
        return self.averaged(current, updates, np.full(len(updates), 1 / len(updates)), spec)


def test_an_aggregator_of_ones_own_must_say_what_it_does() -> None:
    with pytest.raises(ConfigError, match="declare `stale = 'movements'`"):
        server(Undecided()).check(3)

    class Decided(Undecided):
        stale = "movements"

    result = server(Decided()).run(10)
    equal = server(FedAvg(weights="equal")).run(10)
    np.testing.assert_allclose(result.parameters[:5], equal.parameters[:5], rtol=1e-5, atol=1e-6)


def test_what_was_refused_is_not_remembered_by_ca2fl() -> None:
    aggregator = CA2FL()
    result = server(aggregator, Measuring(broken=4)).run(30)
    assert any(client == 4 for _, client, _ in result.rejected)
    kept = aggregator.state_dict()["last_updates"]["last_update"]
    assert 4 not in kept["clients"]
    assert np.isfinite(kept["vectors"]).all()
    used = {client for record in result.records for client in record.trainings[0].clients}
    assert set(kept["clients"].tolist()) == used
    np.testing.assert_allclose(aggregator.state_dict()["total"], kept["vectors"].sum(axis=0), rtol=1e-6, atol=1e-9)


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def wants_stop(self) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("name", LATE)
def test_a_run_that_was_stopped_in_flight_ends_with_the_same_bits(tiny, tmp_path, name) -> None:
    def experiment() -> muster.Experiment:
        return tiny(
            rounds=6,
            devices={"method": "lognormal"},
            pacing={"method": "buffered", "in_flight": 9, "k": 3},
            selection={"method": "random", "clients_per_round": 3},
            aggregation={"method": name} | OPTIONS.get(name, {}),
            # FLTrust's own training is on samples that the server keeps back.
            data={"source": "digits", "validation": 50},
        )

    through = muster.run(experiment(), workers=0)
    assert max(age for r in through.records for age in r.trainings[0].flown.staleness) > 0
    muster.run(experiment(), workers=0, out=tmp_path, observers=[StopAfter(3)])
    resumed = muster.run(experiment(), workers=0, out=tmp_path, resume=True)
    assert resumed.parameters.tobytes() == through.parameters.tobytes()
    assert [r.trainings[0].weights for r in resumed.records] == [r.trainings[0].weights for r in through.records]


@pytest.mark.parametrize("name", ["fedbuff", "fedasync", "ca2fl", "simprox"])
def test_a_real_network_with_batch_normalisation_has_the_same_bits_with_two_workers(tiny, name) -> None:
    """One client at a time of eight that start together: added up, variances would soon be below zero."""
    experiment = tiny(
        rounds=7,
        model={"name": "resnet20"},
        training={"lr": 0.05, "steps": 6, "batch_size": 4},
        devices={"method": "lognormal"},
        pacing={"method": "buffered", "in_flight": 8, "k": 1},
        selection={"method": "random", "clients_per_round": 1},
        aggregation={"method": name},
        engine={"kind": "processes"},
    )
    alone, both = (muster.run(experiment, workers=workers) for workers in (0, 2))
    assert alone.parameters.tobytes() == both.parameters.tobytes()
    variances = [entry.slice for entry in alone.spec.buffers if entry.name.endswith("running_var")]
    assert variances
    assert all((alone.parameters[part] > 0).all() for part in variances)


@pytest.mark.parametrize("name", LATE)
def test_with_equal_devices_late_answers_that_never_come_change_no_bit(name) -> None:
    """Buffered with everybody in the buffer is synchronous, whatever the aggregation does with staleness."""
    same = Devices(np.full(CLIENTS, 20.0), np.full(CLIENTS, 1e12), np.full(CLIENTS, 1e12))
    results = []
    for pacing in (None, Buffered(in_flight=6, k=6)):
        aggregator = copy.deepcopy(build(name))
        selector = RandomSelection(clients_per_round=6)
        results.append(Server(selector, aggregator, Measuring(), devices=same, pacing=pacing).run(4).parameters)
    assert results[0].tobytes() == results[1].tobytes()
