"""Muster's side: `muster.run` with workers; the clock runs from the end of round 1, without evaluation."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import muster
from harness.workload import MEAN, STD, Workload, arrays, network
from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.server.record import RoundRecord


def federation(workload: Workload) -> FederatedData:
    """The data as a user has it: bytes in one array, divided over clients by an index."""
    features, labels = arrays(workload)
    dataset = Dataset(
        name="benchmark",
        train=Samples(features, labels),
        test=Samples(features[:500], labels[:500]),
        classes=workload.classes,
        tokens=workload.tokens,
        normalisation=Normalisation(mean=(MEAN,), std=(STD,), scale=1 / 255),
    )
    return FederatedData(dataset, Index.from_owners(np.arange(len(labels)) // workload.samples, workload.clients))


def experiment(workload: Workload) -> muster.Experiment:
    training = {"optimizer": "sgd", "lr": workload.lr, "batch_size": workload.batch, "epochs": 1}
    if workload.steps is not None:
        training["steps"] = workload.steps
    return muster.Experiment(
        seed=workload.seed,
        # One round to warm up, and one that is never reached: the last round of a run is always evaluated.
        rounds=workload.rounds + 2,
        data=federation(workload),
        model=network(workload),
        training=training,
        selection={"method": "random", "clients_per_round": workload.cohort},
        aggregation={"method": workload.aggregation},
        evaluation={"every": workload.rounds + 2},
    )


class Stopwatch(Observer):
    """Notes when rounds end and what they trained on; stops the run before the round that evaluates."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.ends: list[float] = []
        self.samples: list[int] = []

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self.ends.append(time.perf_counter())
        self.samples.append(ledger.current.samples)

    def wants_stop(self) -> bool:
        # Asked before `round_ended`: the round that has just ended is not in the list yet.
        return len(self.ends) >= self.rounds


def measure(workload: Workload) -> dict[str, float]:
    watch = Stopwatch(workload.rounds)
    muster.run(experiment(workload), workers=workload.workers, observers=[watch])
    return {"samples": sum(watch.samples[1:]), "seconds": watch.ends[-1] - watch.ends[0]}


if __name__ == "__main__":
    print(json.dumps(measure(Workload.from_json(sys.argv[1]))))
