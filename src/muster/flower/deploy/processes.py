"""Child processes that are never left behind: own session, log file, and a guaranteed end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import EngineError

#: Seconds between the polite request to end and the one that cannot be refused.
GRACE = 8.0

#: Ties a command's life to its parent's on Linux (PR_SET_PDEATHSIG = 1), then becomes that command: even `kill -9`
#: of the parent leaves nothing behind. Its own small program, because code between fork and exec is not safe in a
#: process that has threads.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit("the parent has gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass
class Child:
    """A process that leads its own session, with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    _ended: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.wait(0) is None

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it is still running after this time. What it had started ends with it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if not self._ended:  # only now: later the session's number may belong to another process
            self._ended = True
            _kill_session(self.pid)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is still there."""
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it and everything that it has started, immediately."""
        if self.alive:
            _kill_session(self.pid)
            self.process.wait()
            self._ended = True

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Start a command in its own session; it ends when this process does, however that happens (on Linux).

    To be called from a thread that lives as long as the children should: Linux ties them to the thread.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
    return Child(name, process, log)


def stop_all(children: Iterable[Child], grace: float = GRACE) -> None:
    """Ask all to end, wait, and end those that did not."""
    children = list(children)
    for child in children:
        # A stopped process would keep the request until it is continued.
        child.signal(signal.SIGCONT)
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for child in children:
        child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        child.kill()


def _kill_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def free_port() -> int:
    """A port on loopback that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until_healthy(child: Child, url: str, authority: Path, seconds: float = 60.0) -> None:
    """Wait until a SuperLink answers at its health address."""
    context = ssl.create_default_context(cafile=str(authority))
    # Loopback must not go through a proxy that the environment names.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not child.alive:
            raise EngineError(f"{child.name} ended while it was starting:\n{child.tail()}")
        try:
            with opener.open(url, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    raise EngineError(f"{child.name} did not answer at {url} within {seconds:.0f} s:\n{child.tail()}")
