"""`muster replay` as people use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError
from muster.results.store import Store

CONFIG = """
rounds = 4
[partition]
scheme = "dirichlet"
clients = 12
alpha = 0.5
[model]
name = "mlp"
hidden = [8]
[selection]
method = "random"
clients_per_round = 3
[devices]
method = "lognormal"
[pacing]
method = "buffered"
in_flight = 6
k = 2
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A run in a workspace of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_WORKSPACE", raising=False)
    Path("mine.toml").write_text(CONFIG)
    assert CliRunner().invoke(app, ["run", "mine.toml", "--workers", "0"]).exit_code == 0
    with Store("runs") as store:
        (run,) = store.runs()
        yield store, run


def test_a_run_is_found_by_name_fingerprint_and_folder_and_repeated(made):
    _, run = made
    for word in (run.name, run.fingerprint[:6], "runs"):
        result = CliRunner().invoke(app, ["replay", word, "--workers", "0", "--out", "again"])
        assert result.exit_code == 0, result.output
        assert "4 rounds repeated: selections, weights and parameters are the same to the bit" in result.output
    assert Path("again/metrics.csv").exists()


def test_differences_are_told_and_have_an_exit_code(made):
    store, run = made
    store.connection.execute("UPDATE metrics SET value = value + 0.5 WHERE name = 'loss' AND round = 2")
    result = CliRunner().invoke(app, ["replay", run.name, "--workers", "0"])
    assert result.exit_code == 1
    assert "4 rounds repeated, with differences:\n  round 2: the metrics\n" in result.output
    assert "The reason may be" in result.output


def test_unknown_runs_are_one_message(made):
    result = CliRunner().invoke(app, ["replay", "unknown"])
    assert isinstance(result.exception, ConfigError)
    assert "see `muster runs`" in str(result.exception)
