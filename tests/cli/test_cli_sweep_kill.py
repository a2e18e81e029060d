"""Sweeps that are killed with `kill -9` and started again, and sweeps at the same time in one workspace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from muster.results.store import Run, Store
from muster.server.ledger import Costs
from muster.server.result import Result

SWEEP = """
name = "killed"
seeds = [0, 1, 2]
[base]
rounds = 8
[base.data]
source = "digits"
[base.partition]
scheme = "dirichlet"
clients = 12
alpha = 0.5
[base.model]
name = "mlp"
hidden = [16]
[base.training]
batch_size = 8
epochs = 2
[base.selection]
clients_per_round = 6
[grid]
training.lr = [0.05, 0.1]
selection.method = ["random", "terraform", "power-of-choice", "oort"]
"""
RUNS = 24
JOBS = 2
KILLS = 5
#: Measured, not computed.
CLOCKS = ("server_seconds", "seconds")


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def start(sweep: Path, workspace: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "muster.cli.main", "sweep", str(sweep), "--workspace", str(workspace)]
    return subprocess.Popen(
        [*command, "--jobs", str(JOBS), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out


def wait_for_more_rounds(workspace: Path, before: int, process: subprocess.Popen[str]) -> int:
    """Until the sweep has done something again; how many rounds there are then."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if (workspace / "muster.db").exists():
            with Store(workspace) as store:
                done = sum(run.done for run in store.runs())
            if done > before:
                return done
        time.sleep(0.05)
    raise AssertionError("the sweep does nothing")


def results(workspace: Path) -> dict[str, tuple[Run, Result]]:
    with Store(workspace) as store:
        assert store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return {run.fingerprint: (run, store.result(run)) for run in store.runs(sweep="killed")}


def assert_same(mine: Result, theirs: Result) -> None:
    assert np.array_equal(mine.parameters, theirs.parameters)
    assert mine.selections == theirs.selections
    assert mine.records == theirs.records  # metrics and weights included
    names = [field.name for field in fields(Costs) if field.name not in CLOCKS]
    for one, other in zip(mine.ledger.rounds, theirs.ledger.rounds, strict=True):
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    assert mine.ledger.disclosed == theirs.ledger.disclosed
    for record, other_record in zip(mine.records, theirs.records, strict=True):
        assert np.array_equal(record.client_accuracy, other_record.client_accuracy, equal_nan=True)
        for report, twin in zip(record.reports, other_record.reports, strict=True):
            assert np.array_equal(report.clients, twin.clients)
            assert report.values.keys() == twin.values.keys()
            assert all(np.array_equal(report.values[key], twin.values[key]) for key in twin.values)


def assert_nothing_was_run_twice(workspace: Path, kills: int) -> None:
    """Every process that had a run went on after the last round that was saved, and saved each round once."""
    with Store(workspace) as store:
        resumed = 0
        for run in store.runs():
            events = store.events(run)
            assert [event.kind for event in events].count("started") == 1
            assert [event.kind for event in events].count("complete") == 1
            begun = [event for event in events if event.kind in ("started", "resumed")]
            resumed += len(begun) - 1
            ended = store.connection.execute(
                "SELECT round, ended FROM rounds WHERE experiment = ? ORDER BY round", (run.id,)
            ).fetchall()
            assert [row["round"] for row in ended] == list(range(1, run.rounds + 1))
            for one, following in pairwise([*begun, None]):
                until = float("inf") if following is None else following.time
                mine = [row["round"] for row in ended if one.time < row["ended"] < until]
                last = run.rounds if following is None else following.round
                assert mine == list(range(one.round + 1, last + 1))
        assert resumed <= kills * JOBS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_killed_at_five_random_moments_equals_one_that_was_left_alone(sweep, tmp_path):
    finish(start(sweep, tmp_path / "whole"))
    whole = results(tmp_path / "whole")
    assert len(whole) == RUNS
    rng, workspace, done = random.Random(7), tmp_path / "killed", 0
    for number in range(KILLS):
        process = start(sweep, workspace)
        done = wait_for_more_rounds(workspace, done, process)
        time.sleep(rng.uniform(0, 1.5))
        # Everything at once, as `kill -9 -GROUP` and a machine that goes down do; or only the one that people see.
        kill = os.killpg if number % 2 == 0 else os.kill
        kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    finish(start(sweep, workspace))
    killed = results(workspace)
    assert killed.keys() == whole.keys()
    for fingerprint, (_, result) in whole.items():
        assert_same(killed[fingerprint][1], result)
    assert_nothing_was_run_twice(workspace, KILLS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sweeps_in_one_workspace_share_the_work(sweep, tmp_path):
    options = ["--set", "rounds=4"]
    both = [start(sweep, tmp_path / "both", *options) for _ in range(2)]
    for process in both:
        assert "24 of 24 runs complete" in finish(process)
    assert_nothing_was_run_twice(tmp_path / "both", kills=0)
    assert len(results(tmp_path / "both")) == RUNS
