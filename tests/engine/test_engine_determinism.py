"""The same config and seed give the same bits: with any number of workers, and after a worker has died."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

import muster
from muster.data import Dataset, Normalisation, Samples
from muster.engine.local import LocalEngine
from muster.training.base import LocalAlgorithm, LocalRun

SELECTIONS = {
    "random": {"method": "random", "clients_per_round": 5},
    "terraform": {"method": "terraform", "clients_per_round": 8, "min_clients": 2},
    "probe-fairness": {"method": "probe-fairness", "clients_per_round": 4},
}


def pictures() -> Dataset:
    """Coloured noise of the size of CIFAR's pictures."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (300, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 300)
    scaled = Normalisation(scale=1 / 255)
    train, test = (Samples(images[part], labels[part]) for part in (slice(240), slice(240, None)))
    return Dataset("pictures", train, test, classes=10, normalisation=scaled)


def assert_same(left: muster.Result, right: muster.Result) -> None:
    assert np.array_equal(left.parameters, right.parameters)
    assert left.selections == right.selections
    assert [str(row) for row in left.metrics] == [str(row) for row in right.metrics]
    assert [t.weights for r in left.records for t in r.trainings] == [
        t.weights for r in right.records for t in r.trainings
    ]


@pytest.mark.parametrize("method", SELECTIONS)
@pytest.mark.parametrize("aggregation", ["fedavg", "simprox"])
def test_workers_do_not_matter(tiny, method, aggregation):
    experiment = tiny(selection=SELECTIONS[method], aggregation={"method": aggregation})
    alone = muster.run(experiment, workers=0)
    for workers in (1, 2, 3):
        assert_same(alone, muster.run(experiment, workers=workers))


def test_workers_do_not_matter_for_convolutions_with_dropout_and_adam(tiny):
    experiment = tiny(
        data=pictures(),
        model={"name": "cifar10-cnn", "dropout": 0.2},
        partition={"clients": 6, "alpha": 100.0},
        training={"optimizer": "adam", "lr": 0.001, "batch_size": 16},
        rounds=2,
    )
    assert_same(muster.run(experiment, workers=0), muster.run(experiment, workers=2))


def test_another_seed_gives_another_run(tiny):
    first, second = (muster.run(tiny(seed=seed), workers=0) for seed in (0, 1))
    assert not np.array_equal(first.parameters, second.parameters)
    assert first.selections != second.selections


def test_torch_random_state_of_the_caller_is_left_alone(tiny):
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    muster.run(tiny(), workers=0)
    assert torch.equal(torch.rand(3), expected)


def test_an_engine_that_is_dropped_leaves_no_process_behind(tiny):
    parts = muster.experiment.build_parts(tiny(), workers=2)
    parts.server().run(1)
    assert isinstance(parts.engine, LocalEngine)
    pids = parts.engine._pool.pids
    assert len(pids) == 2
    del parts
    gc.collect()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_seeding_a_client_touches_no_other_device(tiny, monkeypatch):
    """`torch.manual_seed` formats the call stack for every device that is not in use: slow for small clients."""
    import torch

    expected = muster.run(tiny(), workers=0)
    made = muster.experiment.build_parts(tiny(), workers=0)

    def refuse(seed):
        raise AssertionError("torch.manual_seed was called for a client")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    assert np.array_equal(made.server().run(3).parameters, expected.parameters)


@dataclass(frozen=True)
class KillsItsWorker(LocalAlgorithm):
    """Ends the process in which a client trains, as the kernel does when memory runs out."""

    folder: str
    client: int
    times: int

    def begin(self, job: LocalRun) -> None:
        marks = Path(self.folder)
        if job.context.client == self.client and len(list(marks.iterdir())) < self.times:
            (marks / f"{os.getpid()}-{len(list(marks.iterdir()))}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_worker_is_replaced_and_changes_nothing(tiny, tmp_path):
    everyone = {"method": "random", "clients_per_round": 12}
    undisturbed = muster.run(tiny(selection=everyone, engine={"kind": "processes"}), workers=2)
    disturbed = muster.run(
        tiny(selection=everyone, algorithm=KillsItsWorker(str(tmp_path), 7, times=1)), workers=2
    )
    assert len(list(tmp_path.iterdir())) == 1
    assert_same(undisturbed, disturbed)


@pytest.mark.parametrize("aggregation", ["fedavg", "simprox"])
def test_a_client_that_kills_twice_is_recorded_and_the_round_goes_on(tiny, tmp_path, aggregation):
    everyone = {"method": "random", "clients_per_round": 12}
    algorithm = KillsItsWorker(str(tmp_path), 7, times=2)
    experiment = tiny(selection=everyone, algorithm=algorithm, aggregation={"method": aggregation})
    result = muster.run(experiment, workers=2)
    first, *others = result.records
    assert list(first.trainings[0].failed) == [7]
    assert "died 2 times" in first.trainings[0].failed[7]
    assert first.trainings[0].clients == [c for c in range(12) if c != 7]
    assert sum(first.trainings[0].weights) == pytest.approx(1)
    assert all(7 in record.trainings[0].clients for record in others)
    assert result.history.failures.tolist() == [0] * 7 + [1] + [0] * 4
