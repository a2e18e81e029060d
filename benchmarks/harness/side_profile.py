"""Where a worker's time goes in a round: shares of kernels, of the rest of PyTorch, and of Python.

The same code that workers run, in this process and on one thread, under PyTorch's profiler, after a round that
warms up. Only what a worker does is counted: from receiving a task to handing the answer over. The profiler slows
everything down but the kernels least, so shares of kernels are lower bounds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

from torch.profiler import ProfilerActivity, profile

import muster
from harness.allocator import keep_freed_memory
from harness.side_muster import Stopwatch, experiment
from harness.workload import Workload
from muster.engine.tasks import TaskRunner
from muster.server.ledger import Ledger
from muster.server.record import RoundRecord

#: Parts of the names of operators, and what they are; the first that fits counts.
KINDS = (
    (
        "matrix multiplication and convolution",
        ("conv", "mkldnn", "addmm", "::mm", "bmm", "linear", "lstm", "gemm"),
    ),
    ("pooling", ("pool",)),
    ("activation and loss", ("relu", "threshold", "clamp_min", "softmax", "nll_loss", "cross_entropy")),
    ("optimiser step", ("_foreach", "optimizer")),
    (
        "copies of data and parameters, movements",
        ("copy", "index", "gather", "embedding", "clone", "contiguous", "cat", "aten::sub"),
    ),
)
#: Whatever these call belongs to them: the gradient of a pooling begins with zeros, for example.
KERNELS = tuple(kind for kind, _ in KINDS[:3])
OTHER, PYTHON = "other operators, autograd", "Python and everything else"


def kind_of(operator: str) -> str:
    found = next((kind for kind, parts in KINDS if any(part in operator for part in parts)), OTHER)
    return found if operator.startswith("aten::") else OTHER


def kind_of_event(event: Any) -> str:
    caller = event.cpu_parent
    while caller is not None:
        if kind_of(caller.name) in KERNELS:
            return kind_of(caller.name)
        caller = caller.cpu_parent
    return kind_of(event.name)


class _Profiled(Stopwatch):
    """Profiles from the end of round 1 on."""

    def __init__(self, rounds: int, profiler: profile) -> None:
        super().__init__(rounds)
        self.profiler = profiler

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        super().round_ended(record, ledger)
        if len(self.ends) == 1:
            self.profiler.start()


def measure(workload: Workload) -> dict[str, float]:
    keep_freed_memory()
    tasks: list[tuple[float, float]] = []

    def timed(runner: TaskRunner, message: Any) -> Any:
        begin = time.perf_counter()
        answer = carry_out(runner, message)
        tasks.append((begin, time.perf_counter()))
        return answer

    carry_out = TaskRunner.__call__
    setattr(TaskRunner, "__call__", timed)  # noqa: B010
    profiler = profile(activities=[ProfilerActivity.CPU])
    watch = _Profiled(workload.rounds, profiler)
    muster.run(replace(experiment(workload), engine={"kind": "inline"}), workers=0, observers=[watch])
    profiler.stop()
    worked = sum(end - begin for begin, end in tasks if begin >= watch.ends[0])
    shares = dict.fromkeys([*(kind for kind, _ in KINDS), OTHER], 0.0)
    for event in profiler.events():  # type: ignore[no-untyped-call]
        shares[kind_of_event(event)] += event.self_cpu_time_total / 1e6 / worked
    return shares | {PYTHON: 1.0 - sum(shares.values())}


if __name__ == "__main__":
    print(json.dumps(measure(Workload.from_json(sys.argv[1]))))
