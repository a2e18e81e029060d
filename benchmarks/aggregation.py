"""Cost of aggregation methods in units of FedAvg on the same matrix, interleaved in one run.

    python benchmarks/aggregation.py              measure and print
    python benchmarks/aggregation.py --quick      tiny sizes: does it work?

Every repeat runs all methods one after the other, and ratios are taken within a repeat, so that what slows the
machine for a while slows both sides. "Memory" is the peak of what a method allocates beside the matrix, as a share
of the matrix.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from harness.report import as_text, machine
from muster.aggregation import Aggregator, Updates
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.geometric_median import GeometricMedian
from muster.aggregation.krum import MultiKrum
from muster.aggregation.median import Median
from muster.aggregation.simagg import SimAgg
from muster.aggregation.simprox import SimProx
from muster.core.parameters import ParameterSpec, SpecEntry


@dataclass(frozen=True)
class Case:
    """A matrix, and how many times the cost of FedAvg SimProx may be on it."""

    clients: int
    parameters: int
    target: float | None = None


CASES = (Case(20, 11_000_000, 3.0), Case(100, 1_000_000, 4.0), Case(1000, 100_000))
QUICK = (Case(20, 200_000, 3.0),)
METHODS: dict[str, Aggregator] = {
    "FedAvg": FedAvg(),
    "SimProx": SimProx(),
    "SimProx, sketch 4096": SimProx(sketch=4096),
    "SimAgg": SimAgg(),
    "multi-Krum": MultiKrum(attackers=2),
    "geometric median": GeometricMedian(),
    "median": Median(),
}


def cohort(case: Case) -> tuple[np.ndarray, Updates, ParameterSpec]:
    """A model, and movements that share a direction, as those of clients do."""
    rng = np.random.default_rng(0)
    current = rng.standard_normal(case.parameters, dtype=np.float32)
    movements = 0.01 * rng.standard_normal((case.clients, case.parameters), dtype=np.float32)
    movements += 0.01 * rng.standard_normal(case.parameters, dtype=np.float32)
    ones = np.ones(case.clients, dtype=np.int64)
    spec = ParameterSpec((SpecEntry("weight", (case.parameters,), 0, case.parameters),))
    return current, Updates.from_movements(movements, sizes=100 * ones), spec


def measure(case: Case, repeats: int) -> list[list[str]]:
    current, updates, spec = cohort(case)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    # The first repeat warms up.
    for repeat in range(repeats + 1):
        for name, method in METHODS.items():
            start = time.perf_counter()
            method.aggregate(current, updates, spec)
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    rows = [["method", "seconds, median", "times FedAvg", "memory / matrix"]]
    for name, method in METHODS.items():
        ratios = [mine / base for mine, base in zip(seconds[name], seconds["FedAvg"], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
        if name == "SimProx" and case.target is not None:
            ratio += f", target ≤ {case.target:g}"
        tracemalloc.start()
        method.aggregate(current, updates, spec)
        memory = tracemalloc.get_traced_memory()[1] / updates.movements.nbytes
        tracemalloc.stop()
        rows.append([name, f"{statistics.median(seconds[name]):.3f}", ratio, f"{memory:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(f"{machine()}; threads: {threads}; load before: {os.getloadavg()[0]:.1f}")
    for case in QUICK if arguments.quick else CASES:
        print(f"\n{case.clients} clients × {case.parameters:,} parameters\n")
        print(as_text(measure(case, arguments.repeats)))


if __name__ == "__main__":
    main()
