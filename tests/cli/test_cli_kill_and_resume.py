"""`kill -9` of the whole process group at any moment, then `--resume`: the same bits as without the kill."""

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
rounds = 12
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = 12
alpha = 0.5
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 4
epochs = 2
[selection]
method = "SELECTION"
clients_per_round = 6
[aggregation]
method = "AGGREGATION"
"""


def start(config: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "run", str(config), "--out", str(out), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def first_round(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "round"


@pytest.fixture(params=[("random", "fedavg"), ("terraform", "fedavgm")], ids=["random", "terraform"])
def config(request, tmp_path):
    path = tmp_path / "experiment.toml"
    selection, aggregation = request.param
    path.write_text(CONFIG.replace("SELECTION", selection).replace("AGGREGATION", aggregation))
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_ten_random_moments(config, tmp_path):
    finish(start(config, tmp_path / "whole"))
    whole = np.load(tmp_path / "whole" / "parameters.npy")
    killed, rng, attempt = 0, random.Random(20), 0
    while killed < 5:  # five moments for each of the two configs
        attempt += 1
        assert attempt < 30, "the run always ended before it could be killed"
        out = tmp_path / f"killed-{attempt}"
        process = start(config, out)
        if killed:
            first_round(process)
            time.sleep(rng.uniform(0, 0.6))
        else:  # once while it starts, before there is a checkpoint
            time.sleep(rng.uniform(0.5, 3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            continue
        killed += 1
        finish(start(config, out, "--resume"))
        assert np.array_equal(np.load(out / "parameters.npy"), whole)
        for name in ("metrics.csv", "selections.json"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_ends_the_round_writes_a_checkpoint_and_can_go_on(config, tmp_path):
    out = tmp_path / "stopped"
    process = start(config, out, "--set", "rounds=400")
    first_round(process)
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this round" in message
    assert "--resume" in message
    assert list(out.glob("checkpoints/*/*.muster"))
    done = json.loads((out / "summary.json").read_text())
    assert not done["complete"]
    finish(start(config, out, "--resume", "--set", "rounds=400"))
    assert json.loads((out / "summary.json").read_text())["complete"]
