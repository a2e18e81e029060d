"""How long one exchange with six nodes takes: warm nodes against stock Flower's, in the same run, in turns.

    python benchmarks/flower_latency.py    # five minutes on two idle cores; writes into docs/flower-latency.md
    python benchmarks/flower_latency.py --rounds 1 --no-page

Both sides are a SuperLink with TLS and node authentication and six nodes as processes on loopback, and run the
same experiment with Terraform (several trainings in a round, each one exchange) through the same engine: only the
nodes differ. The sides take turns, one exchange each, and while one is measured the other's nodes are stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import date
from pathlib import Path
from typing import Any

from harness.report import as_markdown, as_text, machine
from muster.config.flower import FlowerOptions
from muster.engine.base import Failed, TrainOrder
from muster.experiment.parts import Ingredients
from muster.experiment.runner import run
from muster.flower.deploy.driver import Task, largest_answer
from muster.flower.deploy.federation import LocalFederation
from muster.flower.deploy.flower_internals.driving import drive_run
from muster.flower.engine import FlowerEngine
from muster.report.measured import write_measured
from muster.updates.table import Updates

NODES = 6
PAGE = Path(__file__).parents[1] / "docs" / "flower-latency.md"
CONFIG = f"""
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = {NODES}
alpha = 1.0
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 16
[selection]
method = "terraform"
clients_per_round = {NODES}
min_clients = 2
"""


# --- one side: a process of its own ------------------------------------------------------------------------


class TimedEngine(FlowerEngine):
    """Waits for its turn before every training, and tells how long it took."""

    def train(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        tell("waiting")
        sys.stdin.readline()
        start = time.perf_counter()
        answers = list(super().train(order))
        failed = [answer.reason for answer in answers if isinstance(answer, Failed)]
        seconds = time.perf_counter() - start
        tell("measured", seconds=seconds, iteration=order.place.iteration, clients=len(answers), failed=failed)
        yield from answers


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def side(name: str, rounds: int) -> None:
    """Run the experiment on nodes of one kind; every exchange waits for a line on standard input."""
    stock = name == "stock"
    with tempfile.TemporaryDirectory(prefix="muster-latency-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "experiment.toml").write_text(CONFIG)
        task = Task(place / "experiment.toml", place / "out", [f"rounds={rounds}"])
        started = time.perf_counter()
        with (
            LocalFederation(place / "federation", NODES, stock=stock, driven=True) as federation,
            drive_run(federation.link, task.write_app(place), {}) as driven,
        ):

            def make_engine(ingredients: Ingredients) -> TimedEngine:
                driven.grid.max_reply_bytes = largest_answer(ingredients)
                engine = TimedEngine(driven.grid, ingredients, FlowerOptions(deadline=300.0, wait=600.0))
                pids = [node.child.pid for node in federation.nodes]
                tell("ready", seconds=time.perf_counter() - started, pids=pids)
                return engine

            result = run(task.experiment, make_engine=make_engine)
    tell("done", check=float(result.parameters.sum()))


# --- both sides --------------------------------------------------------------------------------------------


class Side:
    """A side's process, and its nodes, which can be frozen."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.exchanges, self.pids = name, list[dict[str, Any]](), list[int]()
        self.start_up = self.check = 0.0
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--side", name, "--rounds", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise SystemExit(f"the {self.name} side ended")

    def until_waiting(self) -> bool:
        """Up to the next exchange; False when there is none."""
        while (said := self.next())["event"] != "waiting":
            if said["event"] == "ready":
                self.start_up, self.pids = said["seconds"], said["pids"]
            elif said["event"] == "done":
                self.check = said["check"]
                return False
        return True

    def exchange(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self.next()
        self.exchanges.append(said)
        return said

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the nodes; now and then they may send a heartbeat, else they would count as dead after a minute."""
        over = threading.Event()

        def cycle() -> None:
            while not over.is_set():
                self.signal(signal.SIGSTOP)
                over.wait(15)
                self.signal(signal.SIGCONT)
                over.wait(1)

        thread = threading.Thread(target=cycle)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def signal(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, number)

    @property
    def seconds(self) -> list[float]:
        return [exchange["seconds"] for exchange in self.exchanges]


def measure(rounds: int) -> tuple[Side, Side]:
    """Warm and stock, in turns. The first exchange of each loads what is loaded late, and does not count."""
    warm, stock = Side("warm", rounds), Side("stock", rounds)
    try:
        waiting = {chosen: chosen.until_waiting() for chosen in (warm, stock)}
        while any(waiting.values()):
            for chosen, other in ((warm, stock), (stock, warm)):
                if not waiting[chosen]:
                    continue
                with other.frozen() if waiting[other] else nullcontext():
                    said = chosen.exchange()
                failed = f", {len(said['failed'])} failed" if said["failed"] else ""
                print(f"{chosen.name:5}  {said['clients']} nodes  {said['seconds']:6.2f} s{failed}", flush=True)
                waiting[chosen] = chosen.until_waiting()
    finally:
        for chosen in (warm, stock):
            chosen.process.terminate()
            chosen.process.wait()
    return warm, stock


def rows(warm: Side, stock: Side) -> list[list[str]]:
    table = [["exchange", "warm nodes", "stock nodes", "stock ÷ warm"]]
    for title, first, last in (("all six nodes", 0, 0), ("sub-iterations, fewer nodes", 1, 99), ("all", 0, 99)):
        mine, theirs = (
            [e["seconds"] for e in chosen.exchanges[1:] if first <= e["iteration"] <= last]
            for chosen in (warm, stock)
        )
        if mine and theirs:
            ratio = statistics.median(theirs) / statistics.median(mine)
            table.append([title, described(mine), described(theirs), f"{ratio:.1f}"])
    return table


def described(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f}–{max(seconds):.2f}, {len(seconds)})"


def content(warm: Side, stock: Side, command: str) -> str:
    """What the page says about this run."""
    mine, theirs = (statistics.median(chosen.seconds[1:]) for chosen in (warm, stock))
    fulfilled = "is reached" if mine <= 2 and mine <= theirs / 4 else "is NOT reached"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return "\n".join(
        [
            as_markdown(rows(warm, stock)),
            "",
            f"At most 2 s in the median and at most a quarter of stock Flower's: the aim **{fulfilled}**, with "
            f"{mine:.2f} s",
            f"and 1/{theirs / mine:.1f}. Starting a SuperLink and six nodes took {warm.start_up:.0f} s (warm) and "
            f"{stock.start_up:.0f} s (stock),",
            "both at the same time.",
            "",
            f"`{command}`, {date.today()}, {machine()};",
            f"load averages at the end: {load}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--side", choices=["warm", "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--no-page", action="store_true", help="do not write docs/flower-latency.md")
    chosen = parser.parse_args()
    if chosen.side:
        side(chosen.side, chosen.rounds)
        return
    warm, stock = measure(chosen.rounds)
    print(as_text(rows(warm, stock)))
    assert warm.check == stock.check, "both sides must have computed the same"
    if not chosen.no_page:
        command = f"python benchmarks/flower_latency.py --rounds {chosen.rounds}"
        write_measured(PAGE, content(warm, stock, command))


if __name__ == "__main__":
    main()
