"""Where a worker's time goes in a round: shares of kernels, of the rest of PyTorch, and of Python.

The same code that workers run, in this process and on one thread, first by the clock and then under PyTorch's
profiler. The profiler slows everything down but the kernels least, so shares of kernels are lower bounds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from torch.profiler import ProfilerActivity, profile

import muster
from harness.side_muster import Stopwatch, experiment
from harness.workload import Workload

#: Parts of the names of operators, and what they are; the first that fits counts.
KINDS = (
    (
        "matrix multiplication and convolution",
        ("conv", "mkldnn", "addmm", "::mm", "bmm", "linear", "lstm", "gemm"),
    ),
    ("pooling", ("pool",)),
    ("activation and loss", ("relu", "threshold", "sigmoid", "tanh", "softmax", "nll_loss", "cross_entropy")),
    ("optimiser step", ("_fused_sgd", "optimizer", "_foreach")),
    ("copies of data and parameters", ("copy", "index", "gather", "embedding", "clone", "contiguous", "cat")),
)


def kind_of(operator: str) -> str:
    lowered = operator.lower()
    return next((kind for kind, parts in KINDS if any(part in lowered for part in parts)), "other operators")


def run(workload: Workload) -> float:
    """Seconds of the timed rounds, in this process."""
    watch = Stopwatch(workload.rounds)
    settings = replace(experiment(workload), engine={"kind": "inline"})
    muster.run(settings, workers=0, observers=[watch])
    return watch.ends[-1] - watch.ends[0]


def measure(workload: Workload) -> dict[str, float]:
    run(workload)
    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run(workload)
    wall = time.perf_counter() - begin
    shares: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = kind_of(event.key)
        shares[kind] = shares.get(kind, 0.0) + event.self_cpu_time_total / 1e6 / wall
    shares["Python and everything else"] = 1.0 - sum(shares.values())
    return shares


if __name__ == "__main__":
    print(json.dumps(measure(Workload.from_json(sys.argv[1]))))
