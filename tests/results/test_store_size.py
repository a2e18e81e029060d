"""What a store costs: space on disk, and time in a run."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

from muster.config.experiment import from_dict
from muster.core.parameters import ParameterSpec
from muster.core.randomness import generator
from muster.experiment.parts import build_parts
from muster.results.store import Store
from muster.selection.history import History
from muster.server.ledger import Costs
from muster.server.record import Report, RoundRecord, TrainingRecord

ROUNDS, POPULATION, COHORT = 10_000, 1_000, 100
METRICS = ["accuracy", "loss", "precision", "recall", "f1", "participant_accuracy"] + [
    f"client_accuracy_{name}" for name in ("mean", "weighted", "std", "worst", "worst_tenth")
]


def a_round(number: int) -> RoundRecord:
    """As a method leaves it that asks twice its cohort for a loss, and has two numbers reported with training."""
    rng = generator(0, "records", number)
    asked = np.sort(rng.choice(POPULATION, 2 * COHORT, replace=False))
    clients = np.sort(rng.choice(asked, COHORT, replace=False))
    weights = rng.dirichlet(np.ones(COHORT))
    told = {name: rng.random(COHORT, dtype=np.float32) for name in ("final_layer_norm", "training_loss")}
    return RoundRecord(
        number,
        [TrainingRecord(clients.tolist(), weights.tolist(), {int(clients[0]): "norm 7.1 is over the limit"})],
        [(["loss"], len(asked), len(asked))],
        dict(zip(METRICS, rng.random(len(METRICS)).tolist(), strict=True)),
        reports=[
            Report(0, False, asked, {"loss": rng.random(len(asked), dtype=np.float32)}),
            Report(1, True, clients, told),
        ],
        client_accuracy=(rng.integers(0, 20, POPULATION) / 20).astype(np.float32),
    )


def megabytes_of_a_long_run(folder) -> float:
    state = {
        "parameters": np.zeros(1, dtype=np.float32),
        "spec": ParameterSpec(()).state_dict(),
        "history": History(POPULATION).state_dict(),
        "privacy": {},
    }
    description = {"name": "long", "seed": 0, "rounds": ROUNDS, "config": {}}
    with Store(folder) as store:
        with store.claim("long", description, every=200) as recorder:
            for number in range(1, ROUNDS + 1):
                costs = Costs(COHORT, 2000, 20_000, 10_000, 10**9, 10**9, 0.01, 12.5, 1.5)
                stage = "complete" if number == ROUNDS else "running"
                recorder.round_ended(
                    a_round(number), costs, {"model update": COHORT, "loss": 2 * COHORT}, lambda: state, stage
                )
        assert store.run("long").done == ROUNDS
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


@pytest.mark.slow
def test_ten_thousand_rounds_of_a_hundred_clients_stay_under_200_megabytes(tmp_path):
    size = megabytes_of_a_long_run(tmp_path)
    print(f"{ROUNDS} rounds × {COHORT} clients of {POPULATION}: {size:.0f} MB")
    assert size < 200


@dataclass
class Shares:
    """Of one run: processor and wall-clock seconds of its rounds, and of keeping them."""

    rounds: int
    run: float
    kept: float
    wall_run: float
    wall_kept: float

    def __str__(self) -> str:
        return (
            f"a round {1e3 * self.run / self.rounds:.1f} ms, keeping it {1e3 * self.kept / self.rounds:.2f} ms "
            f"({self.kept / self.run:.2%}); by the clock on the wall {self.wall_kept / self.wall_run:.2%}"
        )


def measured(workload: dict, folder) -> Shares:
    """Everything in this process, so that its processor time is all there is."""
    experiment = from_dict(workload)
    parts = build_parts(experiment, workers=0)
    server = parts.server()
    processor, wall = [], []
    with Store(folder) as store, store.recorder(experiment) as recorder:
        write = recorder.round_ended

        def timed(*arguments) -> None:
            start = time.process_time(), time.perf_counter()
            write(*arguments)
            processor.append(time.process_time() - start[0])
            wall.append(time.perf_counter() - start[1])

        recorder.round_ended = timed  # type: ignore[assignment]
        with parts.engine:
            start = time.process_time(), time.perf_counter()
            server.run(experiment.rounds, recorder)
            passed = time.process_time() - start[0], time.perf_counter() - start[1]
    return Shares(experiment.rounds, passed[0], sum(processor), passed[1], sum(wall))


def federation(method: str, epochs: int) -> dict:
    """400 clients with 50 samples each on average, 100 of them a round, and a small dense model."""
    return {
        "rounds": 60,
        "data": {"source": "synthetic", "samples": 20_000},
        "partition": {"scheme": "dirichlet", "clients": 400, "alpha": 1.0, "min_size": 5},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"lr": 0.05, "batch_size": 10, "epochs": epochs},
        "selection": {"method": method, "clients_per_round": 100},
    }


@pytest.mark.bench
@pytest.mark.parametrize(("method", "epochs"), [("random", 5), ("terraform", 1), ("power-of-choice", 5)])
def test_the_store_costs_less_than_two_percent_of_a_run_with_a_hundred_clients_a_round(tmp_path, method, epochs):
    shares = measured(federation(method, epochs), tmp_path)
    print(f"{method}, {epochs} local epochs: {shares}")
    assert shares.kept / shares.run < 0.02
