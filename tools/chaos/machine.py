"""What chaos is made with: real processes of the command line, and a disk that can be full."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

#: Seconds after which something that should happen counts as not happening.
PATIENCE = 300.0
#: Exit codes with which a command may end on a full disk (docs/exit-codes.md): a run, a sweep.
FULL = {5, 9}


class ViolatedError(AssertionError):
    """Something that must always hold did not."""


@dataclass
class Counts:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    starts: int = 0
    #: Answers of the page.
    answers: int = 0


def demand(condition: object, what: str) -> None:
    if not condition:
        raise ViolatedError(what)


class Command:
    """`muster …` as a process that leads its own group.

    It is forked from this one, which has loaded the libraries: the time goes into faults instead of imports.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        log.write_bytes(b"")  # here: what an earlier process said must not be taken for this one's words
        self.pid = os.fork()
        if self.pid == 0:
            self._become(arguments)
        self._code: int | None = None

    def _become(self, arguments: tuple[str, ...]) -> None:
        code = 70
        try:
            os.setsid()
            out = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.argv = ["muster", *arguments]
            from muster.cli.main import main

            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(Exception):
                sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    @property
    def alive(self) -> bool:
        return self.code is None

    @property
    def code(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, seconds: float = PATIENCE) -> int:
        end = time.monotonic() + seconds
        while (code := self.code) is None:
            if time.monotonic() > end:
                self.kill()
                raise ViolatedError(f"a process hung for {seconds:.0f} s: {self.said()[-800:]}")
            time.sleep(0.02)
        return code

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """The whole group, as a machine that goes down does."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(30)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def check_manners(self) -> None:
        """Whatever happened: a message, no traceback."""
        demand("Traceback (most recent call last)" not in self.said(), f"a traceback: {self.said()[-1500:]}")


@dataclass
class Disk:
    """A folder that can be filled up, where this process may mount one."""

    folder: Path
    small: bool

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_space(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int = 24) -> Iterator[Disk]:
    """A memory file system of a few megabytes; without the right to mount one, an ordinary folder."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        small = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        small = False
    try:
        yield Disk(folder, small)
    finally:
        if small:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def rounds_done(workspace: Path) -> int:
    """How many rounds a store has; read by the side, so that nobody is disturbed."""
    path = workspace / "muster.db"
    if not path.exists():
        return 0
    with suppress(sqlite3.Error):
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1)
        try:
            return int(database.execute("SELECT coalesce(sum(done), 0) FROM experiments").fetchone()[0])
        finally:
            database.close()
    return 0


def wait_for_progress(command: Command, workspace: Path, before: int) -> int:
    """Until there are more rounds, or the process has ended."""
    end = time.monotonic() + PATIENCE
    while command.alive and rounds_done(workspace) <= before:
        demand(time.monotonic() < end, f"no round in {PATIENCE:.0f} s: {command.said()[-800:]}")
        time.sleep(0.02)
    return max(before, rounds_done(workspace))


def address_of(page: Command) -> str:
    """Where a page can be asked, once it says so."""
    end = time.monotonic() + PATIENCE
    while not (found := re.search(r"http://\S+token=\S+", page.said())):
        demand(page.alive and time.monotonic() < end, f"the page does not start: {page.said()[-800:]}")
        time.sleep(0.05)
    return found[0]
