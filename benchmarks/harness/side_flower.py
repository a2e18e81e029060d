"""Flower's side: its simulation on Ray with its FedAvg, one core a client; timed from the end of round 1."""

from __future__ import annotations

import json
import logging
import sys
import time

from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from harness.flower_client import client_app
from harness.workload import Workload, network


def _examples(reply: RecordDict) -> int:
    count = reply.metric_records["metrics"]["num-examples"]
    assert isinstance(count, int)
    return count


def measure(workload: Workload, style: str) -> dict[str, float]:
    ends: list[float] = []
    samples: list[int] = []

    def count(replies: list[RecordDict], _: str) -> MetricRecord:
        samples.append(sum(_examples(reply) for reply in replies))
        return MetricRecord({"samples": samples[-1]})

    def note_end(server_round: int, _: ArrayRecord) -> None:
        if server_round > 0:
            ends.append(time.perf_counter())

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
            train_metrics_aggr_fn=count,
        )
        arrays = ArrayRecord(network(workload).state_dict())
        strategy.start(grid, arrays, num_rounds=workload.rounds + 1, evaluate_fn=note_end)

    run_simulation(
        server,
        client_app(workload, style),
        num_supernodes=workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workload.workers, "include_dashboard": False, "log_to_driver": False},
        },
    )
    return {"samples": sum(samples[1:]), "seconds": ends[-1] - ends[0]}


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(json.dumps(measure(Workload.from_json(sys.argv[1]), sys.argv[2])))
