"""The same bits over Flower's messages as in the local engine, in this process and on a real SuperLink."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.base import aggregators
from muster.data import Dataset, Normalisation, Samples, from_arrays
from muster.flower.server_app import run_on_grid
from muster.selection.base import Plan, Selector, Train, View
from muster.signals.gradients import MeanGradient
from muster.signals.progress import LocalProgress


def test_every_method_gives_the_same_bits(federation_experiment, grid_of, assert_same):
    local = muster.run(federation_experiment, workers=0)
    assert_same(local, run_on_grid(grid_of(federation_experiment), federation_experiment))


@pytest.mark.parametrize("algorithm", ["scaffold", "moon", "feddyn"])
def test_client_state_gives_the_same_bits(six, grid_of, assert_same, algorithm):
    matching = next(
        (n for n in aggregators if algorithm in (aggregators.get(n).requires_algorithm or ())),  # type: ignore[attr-defined]
        "fedavg",
    )
    experiment = six(
        rounds=4,
        selection={"method": "random", "clients_per_round": 4},
        algorithm={"method": algorithm},
        aggregation={"method": matching},
    )
    assert_same(muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment))


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
@pytest.mark.parametrize("credit", ["batches", "epoch"])
def test_trainings_that_go_on_from_a_probe_are_the_same_bits(six, grid_of, assert_same, optimizer_state, credit):
    probing = {"method": "probe-fairness", "optimizer_state": optimizer_state, "credit": credit}
    experiment = six(
        rounds=2,
        selection=probing | {"clients_per_round": 3},
        training={"momentum": 0.9, "epochs": 2},
        aggregation={"method": "fednova"},
    )
    assert_same(muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment))


def test_augmented_pictures_are_the_same_bits(six, grid_of, assert_same):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (200, 3, 8, 8), dtype=np.uint8), rng.integers(0, 4, 200)
    train, test = (Samples(images[part], labels[part]) for part in (slice(160), slice(160, None)))
    data = Dataset("pictures", train, test, classes=4, normalisation=Normalisation(scale=1 / 255))
    experiment = six(
        rounds=2,
        selection={"method": "probe-fairness", "clients_per_round": 3},
        training={"augmentation": ["crop", "flip"]},
    )
    experiment = replace(experiment, data=data)
    assert_same(muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment))


@pytest.mark.parametrize("evaluate", ["server", "clients"])
def test_validation_and_the_schedule_that_follows_it_are_the_same(six, grid_of, evaluate):
    experiment = six(
        rounds=4,
        data={"source": "digits", "validation": 0.2},
        training={"schedule": "plateau", "patience": 0, "lr": 0.5},
        flower={"evaluate": evaluate},
    )
    local, remote = muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment)
    assert np.array_equal(local.parameters, remote.parameters)
    losses = [[row["validation_loss"] for row in run.metrics] for run in (local, remote)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("evaluate", ["server", "clients"])
@pytest.mark.parametrize("task", ["regression", "multi-label", "classification"])
def test_other_tasks_and_metrics_are_the_same(six, grid_of, evaluate, task):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(240, 4))
    targets = {
        "regression": features[:, 0],
        "multi-label": features > 0,
        "classification": features.argmax(axis=1),
    }
    data = from_arrays(
        features, targets[task], clients=np.arange(240) % 6, task=task, attributes=np.arange(240) // 6 % 2
    )
    experiment = six(
        rounds=2, flower={"evaluate": evaluate}, selection={"method": "random", "clients_per_round": 3}
    )
    own = {"size": lambda outputs, targets: outputs.abs().sum(dim=1)}
    experiment = replace(experiment, data=data, partition={"scheme": "natural"}, objective={"metrics": own})
    local, remote = muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment)
    assert np.array_equal(local.parameters, remote.parameters)
    here, there = local.metrics[-1], remote.metrics[-1]
    assert here.keys() == there.keys()
    assert {"size", "group_gap"} <= here.keys()
    for name, value in here.items():
        if name != "virtual_seconds":  # on a federation time is real
            assert there[name] == pytest.approx(value, nan_ok=True), name


@dataclass
class Levelling(Selector):
    """Small clients learn faster and are held back more."""

    def needs(self) -> tuple[Any, ...]:
        return (MeanGradient(part="final_layer"), LocalProgress())

    def round(self, fed: View) -> Plan:
        chosen = fed.rng.permutation(fed.sample(4))
        small = fed.sizes[chosen] < np.median(fed.sizes)
        factors = {"lr_factors": np.where(small, 2.0, 0.5), "pull_factors": np.where(small, 3.0, 0.0)}
        replies = yield Train(chosen, self.needs(), **factors)
        fed.notes["gradients"] = replies["mean_gradient"].sum(axis=1)


def test_rates_and_strengths_of_the_clients_own_give_the_same_bits(six, grid_of, assert_same):
    experiment = six(algorithm={"method": "fedprox", "mu": 0.2}, aggregation={"method": "fednova"})
    experiment = replace(experiment, selection=Levelling())
    local = muster.run(experiment, workers=0)
    remote = run_on_grid(grid_of(experiment), experiment)
    assert_same(local, remote)
    assert [record.notes for record in local.records] == [record.notes for record in remote.records]


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    """A SuperLink with TLS and node authentication, and six nodes: real processes on loopback."""
    from muster.flower.deploy.federation import LocalFederation

    with LocalFederation(tmp_path_factory.mktemp("federation"), 6) as federation:
        yield federation.link


@pytest.mark.flower
@pytest.mark.xdist_group("parity")
def test_every_method_gives_the_same_bits_on_a_superlink(federation_experiment, superlink, assert_same, tmp_path):
    from muster.flower.deploy.driver import Task, run_on_link

    config = tmp_path / "experiment.toml"
    config.write_text(toml(federation_experiment))
    remote = run_on_link(Task(config, tmp_path / "out"), superlink)
    assert not remote.rejected
    assert_same(muster.run(federation_experiment, workers=0), remote)


def toml(experiment: muster.Experiment) -> str:
    sections = {name: value for name, value in experiment.to_dict().items() if isinstance(value, dict) and value}
    lines = [f"rounds = {experiment.rounds}", f"seed = {experiment.seed}"]
    for name, options in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in options.items())]
    return "\n".join(lines)
