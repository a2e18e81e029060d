"""Speed, start-up time and memory of the local engine, against bare PyTorch and Flower, interleaved in one run.

    python benchmarks/engine.py              measure, print, write docs/benchmarks.md and its picture
    python benchmarks/engine.py --quick      tiny sizes: does it work? Prints only

The first run makes .venv-peers for Flower. Measure on a quiet machine: the load is printed with the results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import startup
from harness.processes import KEEP_FREED_MEMORY, environment, peak_memory, peers_python, run_side, versions
from harness.report import Rates, Target, as_markdown, as_text, machine, plot_rates, rate_table, verdict
from harness.workload import Workload, network

DOCS = Path(__file__).resolve().parent.parent / "docs"
TITLES = {
    "muster": "Muster",
    "bare": "bare PyTorch, tuned",
    "bare-stock": "bare PyTorch",
    "flower": "Flower",
    "flower-tensors": "Flower, bare loop",
    "flower-tuned": "Flower, clients tuned",
}
TARGETS = (Target("bare", 0.93), Target("flower", 1.8))
STARTUP_SECONDS = 6.0
#: A one-minute load average above this means that somebody else is using the machine.
QUIET_LOAD = 0.8
#: Cohorts whose memory is compared, with rounds that train about as many clients.
COHORTS = {6: 8, 50: 1}


@dataclass(frozen=True)
class Memory:
    """Peak bytes (sum of PSS) by cohort, for an aggregator that streams and for one that needs all updates."""

    aggregation: str
    peaks: dict[int, int]

    @property
    def growth(self) -> float:
        small, large = self.peaks[min(self.peaks)], self.peaks[max(self.peaks)]
        return (large - small) / 2**20


@dataclass(frozen=True)
class Findings:
    """Everything that one run of this script measured."""

    workload: Workload
    rates: dict[str, Rates]
    starts: list[float]
    memories: list[Memory]
    load_before: float
    packages: dict[str, str]


def sides(workload: Workload, with_flower: bool) -> dict[str, Callable[[], dict[str, float]]]:
    """What is measured, by name; each call is a run in fresh processes."""
    text = workload.to_json()
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "muster": lambda: run_side("harness.side_muster", [text]),
        "bare": lambda: run_side("harness.side_bare", [text], settings=KEEP_FREED_MEMORY),
        "bare-stock": lambda: run_side("harness.side_bare", [text]),
    }
    if with_flower:
        peer, module = peers_python(), "harness.side_flower"
        measures["flower"] = lambda: run_side(module, [text, "examples"], peer)
        measures["flower-tensors"] = lambda: run_side(module, [text, "tensors"], peer)
        measures["flower-tuned"] = lambda: run_side(module, [text, "tuned"], peer, KEEP_FREED_MEMORY)
    return measures


def measure_speed(workload: Workload, repeats: int, with_flower: bool) -> dict[str, Rates]:
    """Samples per second of all sides, one after the other, in an order that turns with the repeats."""
    measures = sides(workload, with_flower)
    rates = {name: Rates(TITLES[name], []) for name in measures}
    names = list(measures)
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            answer = measures[name]()
            if answer["samples"] != workload.timed_samples:
                raise SystemExit(f"{name} trained on {answer['samples']} samples, not {workload.timed_samples}")
            rates[name].values.append(answer["samples"] / answer["seconds"])
            progress(f"repeat {repeat + 1}/{repeats}  {TITLES[name]:24}{rates[name].values[-1]:8,.0f} samples/s")
    return rates


def measure_memory(workload: Workload) -> list[Memory]:
    """Peak memory by cohort. Two mini-batches a client are enough: memory does not depend on their number."""
    memories = []
    for aggregation in ("fedavg", "median"):
        peaks = {}
        for cohort, rounds in COHORTS.items():
            small = replace(workload, cohort=cohort, rounds=rounds, steps=2, aggregation=aggregation)
            command = [sys.executable, "-m", "harness.side_muster", small.to_json()]
            peaks[cohort] = peak_memory(command, environment())
            progress(f"memory  {aggregation:8} cohort {cohort:3}  {peaks[cohort] / 2**20:8,.0f} MiB")
        memories.append(Memory(aggregation, peaks))
    return memories


def memory_table(memories: list[Memory]) -> list[list[str]]:
    small, large = min(COHORTS), max(COHORTS)
    rows = [["aggregation", f"cohort {small}, MiB", f"cohort {large}, MiB", "growth, MiB"]]
    for memory in memories:
        peaks = [f"{memory.peaks[cohort] / 2**20:,.0f}" for cohort in (small, large)]
        kind = "streams" if memory.aggregation == "fedavg" else "needs all updates at once"
        rows.append([f"{memory.aggregation} ({kind})", *peaks, f"{memory.growth:+,.0f}"])
    return rows


def update_size() -> float:
    """MiB of one client's update."""
    return sum(4 * parameter.numel() for parameter in network().parameters()) / 2**20


def startup_line(starts: list[float]) -> str:
    later = statistics.median(starts[1:]) if len(starts) > 1 else starts[0]
    word = "reached" if max(starts[0], later) < STARTUP_SECONDS else "NOT reached"
    return (
        f"start-up to the first round: {starts[0]:.1f} s the first time (data files are decoded), "
        f"then {later:.1f} s (target < {STARTUP_SECONDS:.0f} s): {word}"
    )


def busy_warning(load: float) -> list[str]:
    """A paragraph for the page when other programs were running."""
    if load < QUIET_LOAD:
        return []
    return [
        "",
        "**The machine was busy with other work.** All rates and times below are worse than on an idle one, and "
        "spreads are wide; the ratios come from interleaved runs but carry that noise too.",
    ]


def page(findings: Findings, command: str) -> str:
    """docs/benchmarks.md."""
    workload = findings.workload
    verdicts = [verdict(target, findings.rates) for target in TARGETS if target.against in findings.rates]
    packages = ", ".join(f"{name} {version}" for name, version in findings.packages.items())
    repeats = len(findings.rates["muster"].values)
    lines = [
        "# Benchmarks",
        "",
        "Measured by",
        "",
        "```sh",
        command,
        "```",
        "",
        f"on {datetime.now(UTC):%d %B %Y}. {machine()}; {packages}. "
        f"Load average when it began: {findings.load_before:.1f}.",
        *busy_warning(findings.load_before),
        "",
        "## Speed of training: FEMNIST network",
        "",
        f"conv 5×5×32, pool, conv 5×5×64, pool, 512, 10 on 28×28×1 pictures; {workload.clients} clients × "
        f"{workload.samples:,} samples, {workload.cohort} a round, batch {workload.batch}, one epoch, SGD. "
        f"{repeats} repeats, all sides interleaved, each in fresh processes; {workload.rounds} rounds "
        "are timed after one that warms up. Start-up and evaluation are not in these numbers.",
        "",
        as_markdown(rate_table(findings.rates)),
        "",
        "![Training samples per second](images/engine-speed.png)",
        "",
        *(f"- {line}" for line in verdicts),
        "",
        "What the sides do:",
        "",
        f"- **Muster**: `muster.run` with {workload.workers} workers, random selection, FedAvg: all that a round "
        "costs (selection, sending the model out, training, checks, aggregation, book-keeping) except evaluation.",
        f"- **bare PyTorch**: {workload.workers} single-threaded processes in `channels_last` with tensors in RAM "
        "and the fused SGD, which only train: no server, no aggregation, no waiting for each other. **Tuned**: "
        "and with the memory allocator's settings that Muster's workers choose for themselves. This is the limit.",
        "- **Flower**: its simulation (Ray, two clients at once, one core each) with its FedAvg. Clients are "
        "written as in Flower's examples: a DataLoader over tensors in RAM, ReLU before pooling, the default "
        "layout. **Bare loop**: with the loop of the bare side instead. **Clients tuned**: their author has also "
        "converted model and data to `channels_last` and set the allocator. So part of the distance to Flower is "
        "what its users have to know, and part is the simulation itself.",
        "",
        "Every side must report the same number of trained samples, or the script stops. That Muster's result is "
        "that of a plain FedAvg loop over the same batches is checked by "
        "`tests/engine/test_engine_against_plain_loop.py`. Ratios are medians of the ratios within repeats.",
        "",
        "## Start-up",
        "",
        f"`muster run` on {workload.clients * workload.samples:,} pictures in Fashion-MNIST's file format, from "
        "the start of the process until set-up is over and round 1 begins:",
        "",
        f"- {startup_line(findings.starts)}",
        "",
        "## Memory",
        "",
        "Peak of the sum of PSS over all processes, two mini-batches a client. FedAvg takes updates as they come, "
        "so its memory does not depend on the cohort; the median needs all of them "
        f"({update_size():.1f} MiB each).",
        "",
        as_markdown(memory_table(findings.memories)),
        "",
    ]
    return "\n".join(lines)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(workload: Workload, repeats: int, with_flower: bool) -> Findings:
    load = os.getloadavg()[0]
    packages = versions(sys.executable, ["muster-fl", "torch", "numpy"])
    if with_flower:
        packages |= versions(peers_python(), ["flwr", "ray"])
    rates = measure_speed(workload, repeats, with_flower)
    starts = startup.measure(workload, repeats=min(4, repeats + 1))
    return Findings(workload, rates, starts, measure_memory(workload), load, packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="repeats of every side (default 5)")
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds of a repeat (default 4)")
    parser.add_argument("--skip-flower", action="store_true", help="without Flower and its environment")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is written")
    options = parser.parse_args()
    workload = Workload(rounds=options.rounds)
    repeats = options.repeats
    if options.quick:
        workload, repeats = replace(workload, samples=64, rounds=1), min(repeats, 1)
    findings = measure(workload, repeats, with_flower=not options.skip_flower)
    print(as_text(rate_table(findings.rates)), end="\n\n")
    for target in TARGETS:
        if target.against in findings.rates:
            print(verdict(target, findings.rates))
    print(startup_line(findings.starts), end="\n\n")
    print(as_text(memory_table(findings.memories)), end="\n\n")
    print(machine(), findings.packages, f"load {findings.load_before:.1f}")
    if not options.quick:
        images = DOCS / "images"
        images.mkdir(parents=True, exist_ok=True)
        plot_rates(findings.rates, images / "engine-speed.png", "FEMNIST network, 2 cores, 6 clients a round")
        command = " ".join(["python benchmarks/engine.py", *sys.argv[1:]])
        (DOCS / "benchmarks.md").write_text(page(findings, command), encoding="utf-8")


if __name__ == "__main__":
    main()
