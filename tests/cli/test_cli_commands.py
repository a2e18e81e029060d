"""The command line as a new user meets it."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_teaches():
    text = call("--help")
    assert "quickstart" in text
    assert "run" in text
    assert "--resume" in call("run", "--help")


def test_version_needs_no_command():
    assert call("--version").strip() == muster.__version__


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("selection", ["random", "terraform"]),
        ("aggregation", ["fedavg"]),
        ("data", ["digits", "fashion-mnist"]),
        ("partitions", ["iid", "dirichlet", "multi-dirichlet"]),
        ("models", ["mlp", "femnist-cnn"]),
    ],
)
def test_list_has_one_line_for_each(kind, names):
    lines = {line.split()[0]: line for line in call("list", kind).splitlines() if line.strip()}
    for name in names:
        assert len(lines[name].split()) > 3, f"{name} has no description"


def test_everything_that_is_registered_has_a_description():
    from muster.cli.show import KINDS

    assert [f"{kind}/{n}" for kind, registry in KINDS.items() for n in registry if not registry.summary(n)] == []


def test_run_writes_plain_files(here):
    Path("c.toml").write_text('rounds = 2\n[selection]\nmethod = "terraform"\nclients_per_round = 10\n')
    text = call("run", "c.toml", "--workers", "0", "--out", "out", "--set", "training.lr=0.1")
    assert "accuracy" in text
    rows = list(csv.DictReader(Path("out/metrics.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["1", "2"]
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["complete"]
    assert summary["costs"]["client_trainings"] >= 20
    assert json.loads(Path("out/config.json").read_text())["training"] == {"lr": 0.1}


def test_json_lines_are_json(here):
    Path("c.toml").write_text("rounds = 2\n")
    lines = [json.loads(line) for line in call("run", "c.toml", "-w", "0", "--json").splitlines()]
    assert [line["event"] for line in lines] == ["round", "round", "result"]
    assert Path(lines[-1]["out"]).is_dir()


def test_json_has_null_where_nothing_was_measured(here):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    Path("c.toml").write_text("rounds = 3\n[evaluation]\nevery = 3\n")
    text = call("run", "c.toml", "-w", "0", "--json", "--out", "out")
    first, *_ = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert first["metrics"]["accuracy"] is None
    rows = json.loads(Path("out/selections.json").read_text(), parse_constant=refuse)
    assert [row["metrics"]["accuracy"] is None for row in rows] == [True, True, False]


def test_the_command_to_go_on_with_is_the_one_that_was_stopped(here, monkeypatch):
    monkeypatch.setattr("muster.console.progress.StopAfterRound.wants_stop", lambda self: True)
    Path("c.toml").write_text("rounds = 3\n")
    result = CliRunner().invoke(app, ["run", "c.toml", "-w", "0", "--out", "out", "--set", "training.lr=0.1"])
    assert result.exit_code == 130
    assert "muster run c.toml --set training.lr=0.1 --out out --resume" in result.output


def test_rounds_extends_a_run_or_says_why_not(here):
    Path("c.toml").write_text("rounds = 2\n")
    call("run", "c.toml", "-w", "0")
    longer = call("run", "c.toml", "-w", "0", "--rounds", "4")
    assert "continues after round 2 of run" in longer
    assert "(2 of 2 rounds)" in longer
    call("run", "c.toml", "-w", "0", "--set", "training.schedule=cosine")
    anew = call("run", "c.toml", "-w", "0", "--set", "training.schedule=cosine", "--rounds", "4")
    assert "starts at round 1: run" in anew
    assert "cannot be extended, because training.schedule = 'cosine' ends with the last round" in anew
    assert "expected" not in call("run", "c.toml", "-w", "0", "--rounds", "3", "--workspace", "empty")


def test_resume_says_when_there_is_nothing_to_go_on_with(here):
    Path("c.toml").write_text("rounds = 2\n")
    assert "--resume:" not in call("run", "c.toml", "-w", "0")
    assert "--resume:" not in call("run", "c.toml", "-w", "0", "--resume")
    longer = call("run", "c.toml", "-w", "0", "--resume", "--set", "rounds=3")
    assert "continues after round 2 of run" in longer
    shorter = call("run", "c.toml", "-w", "0", "--resume", "--set", "rounds=1")
    assert "starts at round 1; with a different number of rounds it is a different run" in shorter
    assert "with 2 of 2 rounds" in shorter
    other = call("run", "c.toml", "-w", "0", "--resume", "--set", "seed=5")
    assert "has nothing to continue, so this starts at round 1\n" in other


def test_quickstart_compares_and_draws(here):
    text = call("quickstart", "--rounds", "2", "--out", "q")
    assert "At equal work" in text
    assert "terraform" in text
    assert Path("q/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "muster ui --workspace q --open" in text
    assert "diversity-score" in call("runs", "--workspace", "q")


def test_the_installed_command_reports_mistakes_without_a_traceback(here):
    command = [sys.executable, "-m", "muster.cli.main", "run", "missing.toml"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"}
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: cannot read the config missing.toml")


def test_a_picture_of_the_partition_is_drawn_only_where_it_is_asked_for(here):
    Path("digits.toml").write_text("rounds = 2\n")
    before = set(Path().iterdir())
    call("data", "show", "digits.toml")
    assert set(Path().iterdir()) == before
    call("data", "show", "digits.toml", "--out", "who.png")
    assert set(Path().iterdir()) - before == {Path("who.png")}


def test_an_own_selector_is_named_by_its_module_and_its_code_identifies_the_run(here, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = """
import muster
class FirstOnes(muster.selection.Selector):
    def __init__(self, clients_per_round: int = 2):
        self.clients_per_round = clients_per_round
    def round(self, fed):
        yield muster.selection.Train(fed.available[: self.clients_per_round])
"""
    (here / "my_methods.py").write_text(source, encoding="utf-8")
    (here / "sweep.toml").write_text(
        'name = "own"\nseeds = [0]\nbase = { rounds = 1, selection = { clients_per_round = 3 } }\n'
        '[[cases]]\nname = "mine"\nselection.method = "my_methods:FirstOnes"\n',
        encoding="utf-8",
    )
    call("sweep", "sweep.toml")
    run = json.loads(call("runs", "--json"))
    assert (run["status"], run["config"]["selection"]["method"]) == ("complete", "my_methods:FirstOnes")
    settings = {"rounds": 1, "selection": {"method": "my_methods:FirstOnes", "clients_per_round": 3}}
    result = muster.run(muster.experiment.from_dict(settings), workers=0)
    assert (result.name, result.selections) == ("FirstOnes", [[[0, 1, 2]]])
    assert muster.experiment.from_dict(settings).fingerprint == run["fingerprint"]
    (here / "my_methods.py").write_text(source.replace("[: self", "[1 : 1 + self"), encoding="utf-8")
    monkeypatch.delitem(sys.modules, "my_methods")
    importlib.invalidate_caches()
    assert muster.experiment.from_dict(settings).fingerprint != run["fingerprint"]
