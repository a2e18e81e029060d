"""Fuzzing: almost valid files and messages, for minutes, from a seed (docs/reliability.md).

    python tools/fuzz/fuzz.py --seconds 20              # of processor time for each target
    python tools/fuzz/fuzz.py --only traces --input 17  # one input again, with its traceback

An input passes if it is taken, or refused with one of Muster's own errors. Everything else is a finding: another
exception, more than a few seconds of processor time, more than a gigabyte of memory, a program started, a pickle
read, a connection opened.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from targets import TARGETS, Attempt

from muster.core.errors import MusterError

#: What one input may take: processor seconds, and bytes of memory beside what the process has.
SECONDS, MEMORY = 10, 2**30
#: What no file or message may lead to.
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
)
#: Findings after which a target is left alone.
ENOUGH = 25


class TooSlowError(BaseException):
    """Not an Exception: nobody should catch it."""


class ForbiddenError(BaseException):
    """Not an Exception: nobody should catch it."""


@dataclass
class Tally:
    taken: int = 0
    refused: int = 0
    #: What was raised and where → the first input that led to it, and how many did.
    findings: dict[str, tuple[int, int]] = field(default_factory=dict)

    def find(self, number: int, what: str) -> None:
        first, times = self.findings.get(what, (number, 0))
        self.findings[what] = first, times + 1


_watched = [False]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched[0] and event in FORBIDDEN:
        raise ForbiddenError(f"{event}{arguments[:1]}")


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {SECONDS} s")


def attempt_one(attempt: Attempt, seed: str) -> str:
    """ "taken" or "refused"; raises what the input led to otherwise."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    _watched[0] = True
    try:
        attempt(random.Random(seed))
    except MusterError:
        return "refused"
    else:
        return "taken"
    finally:
        _watched[0] = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def place(error: BaseException) -> str:
    """An error by its type and where in Muster it came out."""
    steps = [step for step in traceback.extract_tb(error.__traceback__) if "muster" in step.filename]
    last = steps[-1] if steps else traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} ({last.name}): {str(error)[:120]!r}"
    )


def fuzz(name: str, seed: int, seconds: float, inputs: int | None = None, *, limited: bool = False) -> Tally:
    """Try inputs for so many processor seconds, or so many of them; `limited`: memory is, from then on."""
    tally, number = Tally(), 0
    with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as folder:
        attempt, start = TARGETS[name](Path(folder)), time.process_time()
        with suppress(BaseException):  # loads what is loaded only when it is needed
            attempt_one(attempt, f"{seed} {name} first")
        if limited:
            limit_memory()
        while len(tally.findings) < ENOUGH:
            if number >= inputs if inputs is not None else time.process_time() - start > seconds:
                break
            try:
                done = attempt_one(attempt, f"{seed} {name} {number}")
                tally.taken += done == "taken"
                tally.refused += done == "refused"
            except (Exception, TooSlowError, ForbiddenError) as error:
                tally.find(number, place(error))
            number += 1
    return tally


def prepare() -> None:
    """Limits of this process, for the rest of its life."""
    sys.addaudithook(_audit)
    signal.signal(signal.SIGPROF, _too_slow)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def limit_memory() -> None:
    """To what the process has now, libraries and valid examples included, and a gigabyte."""
    limit = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time for each target")
    parser.add_argument("--only", choices=list(TARGETS), action="append")
    parser.add_argument("--input", type=int, help="this input alone, with its traceback")
    options = parser.parse_args()
    import muster.experiment.preload  # noqa: F401 (so that limits are on top of the libraries)

    prepare()
    if options.input is not None:
        with tempfile.TemporaryDirectory(prefix="muster-fuzz-") as folder:
            for name in options.only:
                print(name, attempt_one(TARGETS[name](Path(folder)), f"{options.seed} {name} {options.input}"))
        return
    report, failed = {}, False
    for name in options.only or TARGETS:
        tally = fuzz(name, options.seed, options.seconds, limited=True)
        failed |= bool(tally.findings)
        report[name] = {"taken": tally.taken, "refused": tally.refused, "findings": len(tally.findings)}
        print(f"{name}: {tally.taken + tally.refused} inputs, {tally.refused} of them refused", flush=True)
        for what, (first, times) in tally.findings.items():
            print(f"  {times}×, first at --only {name} --input {first}: {what}", flush=True)
    print(json.dumps(report))
    sys.exit(failed)


if __name__ == "__main__":
    main()
