"""Runs a side as a process of its own: fresh, alone, its answer the last line that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

BENCHMARKS = Path(__file__).resolve().parent.parent
PEERS = BENCHMARKS.parent / ".venv-peers"
SECONDS_BETWEEN_LOOKS = 0.02


class SideFailed(RuntimeError):
    """A side ended without an answer."""


def environment(**more: str) -> dict[str, str]:
    """This process's environment without limits on threads, and with what keeps peers from phoning home."""
    quiet = {
        "PYTHONPATH": str(BENCHMARKS),
        "PYTHONWARNINGS": "ignore",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    kept = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return kept | quiet | more


def run_side(module: str, arguments: Sequence[str], python: str = sys.executable) -> dict[str, Any]:
    """Run `python -m module arguments…`; the JSON object that it prints last."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [python, "-m", module, *arguments],
            env=environment(FLWR_HOME=home),
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise SideFailed(f"{module} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def peak_memory(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Bytes: the largest sum of PSS (shared pages counted once) over a command's processes while it runs."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=dict(env), stdout=subprocess.DEVNULL, stderr=errors)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _memory_of_tree(process.pid))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if process.returncode != 0:
            errors.seek(0)
            raise SideFailed(f"{command} ended with code {process.returncode}:\n{errors.read().decode()[-3000:]}")
    return peak


def _memory_of_tree(pid: int) -> int:
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in processes:
        try:
            total += int(process.memory_full_info().pss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            continue
    return total


def peer_python(peer: str) -> str:
    """The interpreter of a peer's environment; the first call makes the environment."""
    requirements, home = BENCHMARKS / f"requirements-{peer}.txt", PEERS / peer
    stamp, python = home / "requirements-installed.txt", home / "bin" / "python"
    wanted = requirements.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"making {home} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Installed versions, as that interpreter sees them."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer
