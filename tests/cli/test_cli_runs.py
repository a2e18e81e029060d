"""`muster sweep`, `muster runs` and `muster export` as people use them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from muster.cli.app import app
from muster.console.output import out
from muster.core.errors import ConfigError, MusterError, OutputError, StoreError, SweepError
from muster.experiment.jobs import RunOutcome
from muster.results import export
from muster.results.store import Store

SWEEP = """
seeds = [0, 1]
[base]
rounds = 2
[base.partition]
scheme = "dirichlet"
clients = 12
alpha = 0.5
[base.model]
name = "mlp"
hidden = [8]
[base.selection]
clients_per_round = 4
[grid]
selection.method = ["random", "power-of-choice"]
"""
FAILING = SWEEP + '[[cases]]\nname = "good"\n[[cases]]\nname = "bad"\ntraining.lr = -1.0\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_WORKSPACE", raising=False)
    monkeypatch.setattr(out, "width", 200)
    Path("mine.toml").write_text(SWEEP)
    return tmp_path


def call(*arguments: str, code: int = 0, answer: str | None = None) -> str:
    result = CliRunner().invoke(app, [*arguments], input=answer)
    if isinstance(result.exception, MusterError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with the finished sweep."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "mine.toml").write_text(SWEEP)
    call("sweep", str(folder / "mine.toml"), "--workspace", str(folder))
    return folder


@pytest.fixture
def done(here, workspace):
    shutil.copytree(workspace, "runs")


def test_a_plan_leaves_nothing_behind(here):
    text = call("sweep", "mine.toml", "--dry-run")
    assert "mine: 4 runs" in text
    assert "4 runs, 2 side by side: about" in text
    assert not Path("runs").exists()


def test_a_sweep_its_list_and_its_details(done):
    assert "4 of 4 runs complete (4 before)" in call("sweep", "mine.toml")
    assert "complete" in call("sweep", "mine.toml", "--dry-run")
    lines = call("runs").splitlines()
    assert len(lines) == 5
    assert all("complete" in line and "mine" in line for line in lines[1:])
    assert len(call("runs", "--method", "random", "--seed", "1").splitlines()) == 2
    assert "no runs match" in call("runs", "--status", "failed")
    assert len(call("runs", "--where", "partition.alpha=0.5", "--sweep", "mine").splitlines()) == 5
    rows = [json.loads(line) for line in call("runs", "--json").splitlines()]
    assert {row["status"] for row in rows} == {"complete"}
    shown = call("runs", "show", rows[0]["fingerprint"][:6])
    for words in (
        "complete, 2 of 2 rounds",
        "What happened",
        "started",
        "accuracy, global test set",
        "[partition]",
    ):
        assert words in shown
    with pytest.raises(ConfigError, match="no run begins with 'zzzz'"):
        call("runs", "show", "zzzz")


def test_a_part_of_a_sweep_with_another_seed(here):
    Path("failing.toml").write_text(FAILING)
    part = ["failing.toml", "--case", "good", "--seed", "7", "--set", "rounds=1", "--workspace", "w"]
    assert "2 of 2 runs complete" in call("sweep", *part)
    with Store("w") as store:
        assert {(run.seed, run.rounds) for run in store.runs(sweep="failing")} == {(7, 1)}
    with pytest.raises(ConfigError, match="no case 'god'") as caught:
        call("sweep", "failing.toml", "--case", "god")
    assert "did you mean 'good'" in str(caught.value)


def test_a_stopped_sweep_says_the_command_that_goes_on_with_the_same_runs(here, monkeypatch):
    monkeypatch.setattr("muster.experiment.jobs.run_experiments", lambda *_, **__: RunOutcome(stopped=True))
    told = call("sweep", "mine.toml", "--set", "rounds=1", "--seed", "7", "--workspace", "w", code=130)
    assert "continues from here: muster sweep mine.toml --set rounds=1 --seed 7 --workspace w" in told


def test_settings_and_failures(here):
    Path("failing.toml").write_text(FAILING)
    with pytest.raises(SweepError, match="4 of 8 runs failed"):
        call("sweep", "failing.toml", "--set", "rounds=1", "--workspace", "elsewhere")
    with Store("elsewhere") as store:
        assert {run.rounds for run in store.runs()} == {1}
        assert len(store.runs(status="complete")) == 4
        assert all("training.lr" in run.error for run in store.runs(status="failed"))
    plan = call("sweep", "failing.toml", "--set", "rounds=1", "--workspace", "elsewhere", "--dry-run")
    assert "will fail: bad value for 'training.lr': -1.0" in plan


def test_deleting_asks_first(done):
    with Store("runs") as store:
        first, second, *_ = [run.fingerprint for run in store.runs()]
    call("runs", "delete", first[:8], code=1, answer="n\n")
    assert "1 run deleted" in call("runs", "delete", first[:8], answer="y\n")
    assert "1 run deleted" in call("runs", "delete", second[:8], "--yes")
    assert len(call("runs").splitlines()) == 3
    with pytest.raises(ConfigError, match="nothing was chosen"):
        call("runs", "delete")
    assert "2 runs deleted" in call("runs", "delete", "--sweep", "mine", "--yes")
    assert "no runs match" in call("runs")


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_export(done, form):
    text = call("export", "tables", "--format", form, "--sweep", "mine")
    assert "4 runs" in text
    read = {"parquet": pyarrow.parquet.read_table, "csv": pyarrow.csv.read_csv}[form]
    tables = {path.stem: read(path) for path in Path("tables").glob(f"*.{form}")}
    assert set(tables) == {"runs", "rounds", "selections", "reports", "client_accuracy", "events"}
    with Store("runs") as store:
        results = {run.fingerprint: store.result(run) for run in store.runs()}
    rounds = tables["rounds"].to_pylist()
    assert len(rounds) == 8
    for row in rounds:
        expected = results[row["run"]].records[row["round"] - 1].metrics
        assert row["accuracy"] == pytest.approx(expected["accuracy"])
        assert row["client_trainings"] == 4
    fingerprint = rounds[0]["run"]
    chosen = [row for row in tables["selections"].to_pylist() if (row["run"], row["round"]) == (fingerprint, 1)]
    assert [row["client"] for row in chosen] == results[fingerprint].selections[0][0]
    assert sum(row["weight"] for row in chosen) == pytest.approx(1)
    assert {row["signal"] for row in tables["reports"].to_pylist()} == {"loss"}
    assert {row["kind"] for row in tables["events"].to_pylist()} == {"started", "complete"}
    with pytest.raises(ConfigError, match="matches"):
        call("export", "tables", "--name", "nobody")


def test_the_model_of_a_run_that_is_named_by_its_fingerprint(done):
    with Store("runs") as store:
        runs = store.runs()
        expected = store.result(runs[1]).parameters
    assert "after 2 rounds: out.pt" in call("export", "--model", "out.pt", "--run", runs[1].fingerprint[:6])
    written = torch.cat([part.flatten() for part in torch.load("out.pt").values()])
    assert torch.equal(written, torch.as_tensor(expected))
    with pytest.raises(ConfigError, match="matches"):
        call("export", "tables", "--run", runs[1].fingerprint[:6], "--seed", "99")


def test_an_export_that_finds_no_room_leaves_the_one_before(done, monkeypatch):
    call("export", "tables", "--format", "csv")
    before = {path.name: path.read_bytes() for path in Path("tables").iterdir()}
    write, calls = export._write, []

    def until_the_disk_is_full(*arguments) -> None:
        calls.append(arguments)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(export, "_write", until_the_disk_is_full)
    with pytest.raises(OutputError, match="cannot write to tables: No space left"):
        call("export", "tables", "--format", "csv")
    assert {path.name: path.read_bytes() for path in Path("tables").iterdir()} == before


def test_without_a_store_there_is_nothing_to_list(here):
    with pytest.raises(StoreError, match="there is no store in runs"):
        call("runs")


def test_run_and_sweep_share_a_workspace(here):
    base = SWEEP.partition("[base]")[2].partition("[grid]")[0]
    Path("one.toml").write_text(base.replace("[base.", "["))
    call("run", "one.toml", "-w", "0", "--set", "selection.method=random", "--workspace", "w")
    assert "4 of 4 runs complete (1 before)" in call("sweep", "mine.toml", "--workspace", "w")
    assert list(Path("w").glob("random-*/metrics.csv"))


@pytest.mark.slow
def test_ctrl_c_lets_the_rounds_end_and_the_same_command_goes_on(here):
    command = [sys.executable, "-m", "muster.cli.main", "sweep", "mine.toml", "--set", "rounds=300"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    assert "4 runs, 0 complete" in process.stderr.readline()
    while True:
        if Path("runs/muster.db").exists():
            with Store("runs") as store:
                if any(run.done for run in store.runs()):
                    break
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues from here" in message
    with Store("runs") as store:
        assert {run.status for run in store.runs()} <= {"stopped", "planned", "complete"}
        assert any(run.status == "stopped" for run in store.runs())
