"""`muster reproduce` as people call it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError
from muster.results.store import Store


@pytest.fixture
def call(monkeypatch, tmp_path):
    """On a machine without data sets."""
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: str):
        return CliRunner().invoke(app, ["reproduce", *arguments, "--workspace", str(tmp_path / "runs")])

    return invoke


def test_the_list(call):
    shown = call().output
    for id in ("terraform/table2", "astrafl/figure6", "probing/figure14", "feddiverse/table4", "simprox/table3"):
        assert id in shown


@pytest.mark.parametrize("word", ["simprox", "simprox/"])
def test_a_paper_alone_lists_what_it_has(call, word):
    result = call(word)
    assert result.exit_code == 0
    assert "simprox/table3" in result.output
    assert "muster reproduce ID" in result.output
    assert "terraform" not in result.output


def test_a_dry_run_says_what_would_be_done(call, tmp_path):
    result = call("terraform/table2", "--scale", "smoke", "--cells", "1*,4", "--rows", "FedAvg / *", "--dry-run")
    assert result.exit_code == 0
    assert "data: digits instead of fashion-mnist" in result.output
    assert "12 runs (2 cells × 6 rows × 1 seed), 12 of them not done yet" in result.output


def test_what_was_run_is_not_run_again_and_pieces_add_up(call, tmp_path):
    arguments = ("simprox/table3", "--scale", "smoke", "--jobs", "1")
    first = call(*arguments, "--rows", "SimProx")
    assert first.exit_code == 0, first.output
    assert "92.20" in first.output
    assert "data: digits instead of banking77" in first.output
    second = call(*arguments, "--out", str(tmp_path / "page.md"))
    assert second.exit_code == 0, second.output
    assert "2 runs, 1 complete" in second.output
    assert "| Banking77 (stand-in): FedAvg | 91.60 |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    with Store(tmp_path / "runs") as store:
        runs = store.runs(sweep="simprox/table3 smoke")
        assert len(runs) == 2
        assert {run.status for run in runs} == {"complete"}


def test_mistakes(call):
    assert isinstance(call("terraform/table9").exception, ConfigError)
    assert isinstance(call("terra").exception, ConfigError)
    assert call("terraform", "--all").exit_code == 2
    assert isinstance(call("terraform/table2", "--cells", "7").exception, ConfigError)
    assert call("terraform/table2", "--all").exit_code == 2
