"""Child processes: logs, signals, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")
from muster.core.errors import EngineError
from muster.flower.deploy.pki import make_authority
from muster.flower.deploy.processes import free_port, start, stop_all, wait_until_healthy

pytestmark = pytest.mark.flower

#: Says that it is ready, and that it was asked to end.
POLITE = """
import signal, sys, time
def leave(*_): print("bye", flush=True); sys.exit(3)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(600)
"""
#: Does not care about SIGTERM, and has a child of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def run(code: str, log: Path):
    return start("child", [sys.executable, "-c", code], log)


def until(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.02)
    return value


def written(log: Path) -> str:
    return log.read_text().strip()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_is_asked_first(tmp_path):
    child = run(POLITE, tmp_path / "log")
    until(lambda: "ready" in written(child.log))
    stop_all([child])
    assert child.wait(0) == 3
    assert not child.alive
    assert "bye" in child.tail()


def test_a_child_that_does_not_listen_ends_with_all_that_it_started(tmp_path):
    child = run(STUBBORN, tmp_path / "log")
    grandchild = int(until(lambda: written(child.log)))
    stop_all([child], grace=0.3)
    assert child.wait(0) == -signal.SIGKILL
    until(lambda: gone(grandchild))


def test_a_stopped_child_ends_as_well(tmp_path):
    child = run(POLITE, tmp_path / "log")
    until(lambda: "ready" in written(child.log))
    child.signal(signal.SIGSTOP)
    stop_all([child])
    assert child.wait(0) == 3


def test_what_a_dead_child_had_started_ends_when_its_death_is_seen(tmp_path):
    child = run(STUBBORN, tmp_path / "log")
    grandchild = int(until(lambda: written(child.log)))
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not child.alive)
    until(lambda: gone(grandchild))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")
def test_children_do_not_outlive_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from muster.flower.deploy.processes import start\n"
            f"child = start('child', [sys.executable, '-c', {POLITE!r}], Path({str(tmp_path / 'log')!r}))\n"
            "print(child.pid, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: (tmp_path / "log").exists() and "ready" in written(tmp_path / "log"))
        assert not gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: gone(pid))


def test_free_ports_can_be_used():
    assert 1024 < free_port() < 65536


def test_a_server_that_ends_at_once_is_not_waited_for(tmp_path):
    child = run("print('port in use'); raise SystemExit(1)", tmp_path / "log")
    authority = make_authority(tmp_path)
    with pytest.raises(EngineError, match="port in use"):
        wait_until_healthy(child, f"https://127.0.0.1:{free_port()}/health", authority.certificate)


def test_a_server_that_never_answers_is_an_error(tmp_path):
    child = run(POLITE, tmp_path / "log")
    try:
        with pytest.raises(EngineError, match="did not answer"):
            wait_until_healthy(
                child, f"https://127.0.0.1:{free_port()}/health", make_authority(tmp_path).certificate, seconds=0.5
            )
    finally:
        stop_all([child])
