"""Chaos: kills, stops, restarts and full disks over runs, sweeps, the page and a federation, from a seed.

    python tools/chaos/chaos.py --minutes 15
    python tools/chaos/chaos.py --minutes 1 --only runs --seed 3

What must always hold: the end is the same to the bit as without faults (on a federation: as in a local repetition
in which the same clients failed), no round is lost, nothing is counted twice, no process hangs, and whoever ends
says why in one message. The first violation ends it with exit code 1 and leaves the folder for inspection.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from episodes import run_episode, sweep_episode
from machine import Counts, ViolatedError

EPISODES = ("runs", "sweeps", "federation")


def chaos(minutes: float, seed: int, only: tuple[str, ...], folder: Path) -> Counts:
    """Episodes in turn until the time is over; the last one is finished. At least one of each."""
    counts, end, number = Counts(), time.monotonic() + 60 * minutes, 0
    with ExitStack() as stack:
        running = None
        while time.monotonic() < end or number < len(only):
            kind = only[number % len(only)]
            place, rng = folder / f"{number}-{kind}", random.Random(f"{seed} {number} {kind}")
            place.mkdir()
            if kind == "federation":
                from federated import federation, federation_episode

                running = running or stack.enter_context(federation(folder / "federation"))
                federation_episode(rng, place, counts, running)
            else:
                (run_episode if kind == "runs" else sweep_episode)(rng, place, counts)
            counts.episodes[kind] += 1
            shutil.rmtree(place, ignore_errors=True)
            print(f"{kind}: {json.dumps(counts.faults)}", file=sys.stderr, flush=True)
            number += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=EPISODES, action="append")
    options = parser.parse_args()
    import muster.experiment.preload  # noqa: F401 (before any process is forked)

    only, start = tuple(options.only or EPISODES), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    try:
        counts = chaos(options.minutes, options.seed, only, folder)
    except ViolatedError as error:
        raise SystemExit(f"violated: {error}\nsee {folder}") from error
    shutil.rmtree(folder, ignore_errors=True)
    report = vars(counts) | {"faults survived": counts.faults.total(), "minutes": (time.monotonic() - start) / 60}
    print(json.dumps(report | {"violations": 0}, indent=1))


if __name__ == "__main__":
    main()
