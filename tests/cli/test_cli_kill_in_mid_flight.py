"""`kill -9` while clients are at work on several versions of the model, then `--resume`: the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

CONFIG = """
rounds = 25
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = 20
alpha = 0.5
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 4
epochs = 3
[devices]
method = "phones"
flops_per_sample = 5e9
jitter = 0.2
[availability]
method = "rhythm"
[selection]
method = "SELECTION"
clients_per_round = 4
[pacing]
PACING
"""
PACINGS = {
    "buffered": 'method = "buffered"\nin_flight = 10\nk = 2\nmax_staleness = 12',
    "late-used": 'method = "deadline"\nquantile = 0.4\nlate = "use"',
}


def start(config: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "run", str(config), "--out", str(out), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("selection", ["random", "oort"])
def test_killed_with_clients_in_mid_flight(tmp_path, pacing, selection):
    config = tmp_path / "experiment.toml"
    config.write_text(CONFIG.replace("PACING", PACINGS[pacing]).replace("SELECTION", selection))
    finish(start(config, tmp_path / "whole", "--workers", "0"))
    out, rng, killed = tmp_path / "killed", random.Random(3), 0
    while killed < 3:  # the same run is killed again and again
        process = start(config, out, "--workers", "2", *(["--resume"] if killed else []))
        assert process.stdout is not None
        for _ in range(rng.randint(2, 5)):
            assert json.loads(process.stdout.readline())["event"] == "round"
        time.sleep(rng.uniform(0, 0.2))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the run ended before it could be killed"
        killed += 1
    finish(start(config, out, "--workers", "1", "--resume"))
    np.testing.assert_array_equal(np.load(out / "parameters.npy"), np.load(tmp_path / "whole" / "parameters.npy"))
    for name in ("metrics.csv", "selections.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rounds = json.loads((out / "selections.json").read_text())
    assert max(s for row in rounds for t in row["trainings"] for s in t["flown"]["staleness"]) > 1
