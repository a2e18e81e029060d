"""What the server costs when clients have devices and sessions: by step, for millions of clients.

Clients answer with made-up numbers and a model of 31 numbers, so that everything that is measured is the server:
who is there, selection, the clock, flights, aggregation, history, books and records. Times are the processor's,
which other work on the machine disturbs least.

    OMP_NUM_THREADS=1 python benchmarks/virtual_time.py                       the table (a few minutes, 4 GB)
    OMP_NUM_THREADS=1 python benchmarks/virtual_time.py --cases asynchronous  one case
    OMP_NUM_THREADS=1 python benchmarks/virtual_time.py --profile --cases synchronous

Each case runs in a process of its own: its memory is the most that this process ever held.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from muster.aggregation.fedavg import FedAvg
from muster.engine.trial import TrialEngine
from muster.pacing import Pacing, Synchronous
from muster.pacing.buffered import Buffered
from muster.selection.random import RandomSelection
from muster.server import Observer, Server
from muster.server.ledger import Ledger
from muster.server.record import RoundRecord
from muster.world.availability import Availability, availabilities
from muster.world.devices.phones import Phones


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    clients: int
    cohort: int
    in_flight: int | None = None
    sessions: str = "rhythm"
    rounds: int = 40
    #: FLOPs of a sample: these make trainings of minutes.
    flops: float = 2e10
    #: What a step may cost, in seconds of the processor.
    limit: float = 1.0

    @property
    def pacing(self) -> Pacing:
        return Synchronous() if self.in_flight is None else Buffered(self.in_flight, k=self.cohort)


CASES = (
    Case("asynchronous", 1_000_000, 10, 1_000, rounds=300, limit=0.02),
    Case("asynchronous, large steps", 1_000_000, 100, 1_000, rounds=100, limit=0.02),
    Case("asynchronous, recorded sessions", 1_000_000, 10, 1_000, "sessions", rounds=300, limit=0.02),
    Case("synchronous", 20_000_000, 10_000, sessions="", rounds=8),
    # The slowest of 10,000 phones decides: with little to compute, a round lasts about a minute and a half.
    Case("synchronous with sessions", 20_000_000, 10_000, sessions="rhythm", rounds=6, flops=2e8),
    Case("synchronous, recorded sessions", 20_000_000, 10_000, sessions="sessions", rounds=6, flops=2e8),
)


@dataclass(frozen=True)
class Measured:
    """Seconds of the processor, virtual seconds and memory of a case."""

    name: str
    set_up: float
    first: float
    median: float
    slowest: float
    virtual: float
    wasted: int
    gigabytes: float


class Timed(Observer):
    """The processor's time after every round."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def started(self, server: Server, rounds: int, done: int) -> None:
        self.moments.append(time.process_time())

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self.moments.append(time.process_time())


def availability(sessions: str) -> Availability | None:
    match sessions:
        case "":
            return None
        case "sessions":
            return availabilities.build("sessions", {"file": "fedscale_100_clients.json"})
    return availabilities.build(sessions, {})


def measure(case: Case) -> Measured:
    begin, timed, engine = time.process_time(), Timed(), TrialEngine(case.clients)
    engine.reachable(0)  # the ids of all clients, made once: with sizes and history, part of the set-up
    server = Server(
        RandomSelection(case.cohort),
        FedAvg(),
        engine,
        devices=Phones(flops_per_sample=case.flops).draw(case.clients, 0, lambda: case.flops),
        availability=availability(case.sessions),
        pacing=case.pacing,
        observers=[timed],
    )
    result = server.run(case.rounds)
    steps = [after - before for before, after in zip(timed.moments, timed.moments[1:], strict=False)]
    costs = result.ledger.total()
    return Measured(
        case.name,
        timed.moments[0] - begin,
        steps[0],
        statistics.median(steps[1:]),
        max(steps[1:]),
        costs.virtual_seconds / case.rounds,
        costs.wasted_trainings,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


def in_a_process(case: Case) -> Measured:
    command = [sys.executable, __file__, "--one", case.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def as_markdown(rows: Sequence[tuple[Case, Measured]]) -> str:
    header = (
        "| case | clients | at once | a step, ms | slowest, ms | first step, s | set-up, s | GiB | limit, ms |"
    )
    lines = [header, "|---" * 9 + "|"]
    for case, found in rows:
        at_once, median, slowest = case.in_flight or case.cohort, 1000 * found.median, 1000 * found.slowest
        lines.append(
            f"| {case.name} | {case.clients:,} | {at_once:,} | {median:.1f} | {slowest:.1f} "
            f"| {found.first:.1f} | {found.set_up:.1f} | {found.gigabytes:.1f} | {1000 * case.limit:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="*", choices=names, default=names)
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead of the table")
    parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(measure(next(case for case in CASES if case.name == options.one)))))
        return
    chosen = [case for case in CASES if case.name in options.cases]
    if options.profile:
        for case in chosen:
            profile = cProfile.Profile(time.process_time)
            profile.runcall(measure, case)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print(as_markdown([(case, in_a_process(case)) for case in chosen]))


if __name__ == "__main__":
    main()
