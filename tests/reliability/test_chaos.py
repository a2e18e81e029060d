"""Chaos, short: `make chaos` does the same for a quarter of an hour, and on a federation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["runs", "sweeps"])
def test_an_episode_of_faults_ends_with_the_bits_of_an_undisturbed_run(kind: str) -> None:
    """In a process of its own: it forks."""
    command = [sys.executable, str(TOOLS / "chaos" / "chaos.py"), "--minutes", "0", "--seed", "1", "--only", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"violations": 0' in done.stdout
