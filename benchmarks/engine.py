"""Speed, scaling, start-up and memory of Muster, against bare PyTorch, pfl-research and Flower, interleaved.

    python benchmarks/engine.py                      measure everything, write docs/benchmarks.md and its picture
    python benchmarks/engine.py --cases mlp logistic --parts speed      only these; the others stay as they were
    python benchmarks/engine.py --parts speed --without flower pfl      a table beside that with these systems
    python benchmarks/engine.py --quick              tiny sizes: does it work? Prints only

The first run makes .venv-peers for the peers. Measure on a quiet machine: what others use of it is kept with the
results.
What was measured is kept in benchmarks/results/engine.json, so that a page can be made in pieces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from harness import startup
from harness.cases import CASES, TITLES, Case
from harness.page import PARTIAL, write_page
from harness.processes import environment, peak_memory, peer_python, run_side, versions
from harness.report import Rates, as_text, machine, rate_table, verdict
from harness.workload import Workload, operations

RESULTS = Path(__file__).resolve().parent / "results" / "engine.json"
PARTS = ("speed", "scaling", "profile", "limits", "startup", "memory")
#: Networks whose operations PyTorch can count.
COUNTED = ("femnist-cnn", "cifar-cnn", "mlp", "logistic")
#: Cohorts whose memory is compared, with rounds that train about as many clients.
COHORTS = {6: 8, 50: 1}


def measure_speed(case: Case, repeats: int, without: tuple[str, ...]) -> dict[str, list[float]]:
    """Samples per second of all sides, one after the other, in an order that turns with the repeats."""
    names = case.sides(without)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            answer, expected = case.measure(name), case.workload_of(name).timed_samples
            if answer["samples"] != expected:
                raise SystemExit(f"{name} trained on {answer['samples']} samples, not {expected}")
            rates[name].append(answer["samples"] / answer["seconds"])
            progress(f"{case.title}, {repeat + 1}/{repeats}  {TITLES[name]:24}{rates[name][-1]:12,.0f} samples/s")
    return rates


def measure_scaling(case: Case) -> list[dict[str, Any]]:
    """Muster's own speed when one size changes."""
    base, rows = case.workload, []
    changes: list[tuple[str, dict[str, Any]]] = [("", {})]
    changes += [("cohort", {"cohort": base.cohort * factor // 2}) for factor in (1, 4)]
    changes += [("clients", {"clients": max(base.cohort, base.clients * factor // 10)}) for factor in (1, 40)]
    changes += [("workers", {"workers": 1})]
    for what, change in changes:
        workload = replace(base, **change)
        if workload.clients * workload.samples > 4_000_000:  # more than the memory of a laptop holds as tensors
            continue
        answer = run_side("harness.side_muster", [workload.to_json()])
        value = getattr(workload, what) if what else None
        rows.append({"changed": what, "to": value, "rate": answer["samples"] / answer["seconds"]})
        progress(f"{case.title}, scaling: {what} {value}: {rows[-1]['rate']:,.0f} samples/s")
    return rows


def measure_memory(workload: Workload) -> dict[str, dict[int, int]]:
    """Peak bytes by cohort. Two mini-batches a client are enough: memory does not depend on their number."""
    peaks: dict[str, dict[int, int]] = {}
    for aggregation in ("fedavg", "median"):
        for cohort, rounds in COHORTS.items():
            small = replace(workload, cohort=cohort, rounds=rounds, steps=2, aggregation=aggregation)
            command = [sys.executable, "-m", "harness.side_muster", small.to_json()]
            peak = peaks.setdefault(aggregation, {})[cohort] = peak_memory(command, environment())
            progress(f"memory  {aggregation:8} cohort {cohort:3}  {peak / 2**20:8,.0f} MiB")
    return peaks


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def conditions(without: tuple[str, ...]) -> dict[str, Any]:
    """What a number depends on, beside the code."""
    packages = versions(sys.executable, ["muster-fl", "torch", "numpy"])
    if "flower" not in without:
        packages |= versions(peer_python("flower"), ["flwr", "ray"])
    if "pfl" not in without:
        packages |= versions(peer_python("pfl"), ["pfl"])
    return {
        "date": f"{datetime.now(UTC):%d %B %Y}",
        "machine": machine(),
        "packages": packages,
        # Of nobody that we started: sides run one after the other, and none runs now.
        "others": psutil.cpu_percent(interval=2.0) / 100,
        "command": " ".join(["python benchmarks/engine.py", *sys.argv[1:]]),
    }


def smaller(case: Case) -> Case:
    sizes = replace(case.workload, clients=min(case.workload.clients, 60), rounds=1, samples=20)
    return replace(case, workload=sizes, rounds={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="workloads (default: all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of every side (default 5)")
    parser.add_argument("--without", nargs="+", choices=("flower", "pfl"), default=[], help="leave a peer out")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is written")
    options = parser.parse_args()
    without = tuple(options.without)
    cases = {name: smaller(CASES[name]) if options.quick else CASES[name] for name in options.cases}
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}

    def keep(part: str, name: str, measure: Callable[[], Any], **about: Any) -> Any:
        # Before the measurement: afterwards the load is the measurement's own.
        where = conditions(without)
        values = measure()
        kept.setdefault(part, {})[name] = {"conditions": where, **about, "values": values}
        if part == "speed":  # a complete table is newer than one without the other systems
            kept.get(PARTIAL, {}).pop(name, None)
        if not options.quick:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return values

    for name, case in cases.items():
        if "speed" in options.parts:
            repeats = 1 if options.quick else options.repeats
            sizes = {"workload": asdict(case.workload), "clients": dict(case.clients)}
            # Ratios of one table are of one run: what leaves systems out does not replace a table that has them.
            part = PARTIAL if without and name in kept.get("speed", {}) else "speed"
            rates = keep(part, name, partial(measure_speed, case, repeats, without), **sizes)
            titled = {side: Rates(TITLES[side], values) for side, values in rates.items()}
            print(as_text(rate_table(titled)), end="\n\n")
            for target in case.targets:
                if target.against in titled:
                    print(verdict(target, titled))
        if "scaling" in options.parts:
            keep("scaling", name, partial(measure_scaling, case))
        if "profile" in options.parts and name in ("femnist-cnn", "cifar-cnn", "char-lstm"):
            text = replace(case.workload, rounds=1).to_json()
            keep("profile", name, partial(run_side, "harness.side_profile", [text]))
    if "limits" in options.parts:
        keep("limits", "machine", partial(run_side, "harness.side_limit", [str(Workload().workers)]))
        keep("limits", "operations", lambda: {name: operations(CASES[name].workload) for name in COUNTED})
    if "startup" in options.parts and not options.quick:
        keep("startup", "femnist-cnn", partial(startup.measure, CASES["femnist-cnn"].workload, repeats=4))
    if "memory" in options.parts and not options.quick:
        keep("memory", "femnist-cnn", partial(measure_memory, CASES["femnist-cnn"].workload))
    if not options.quick:
        write_page(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
