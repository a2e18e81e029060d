"""A dry run of every entry where the data sets are: CIFAR-100 has no stand-in, and all values are decided."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fixtures.papers import undecided
from muster.cli.app import app
from muster.papers.entries import SCALES, entries
from muster.papers.planning import as_published, plan
from muster.papers.stand_ins import is_here, wanted_data

pytestmark = pytest.mark.realdata

HERE = ("banking77", "cifar10", "cifar100", "fashion-mnist", "mnist", "shakespeare")


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path) -> None:
    """The folder has the data sets that entries want; otherwise there is nothing to see."""
    root = os.environ.get("MUSTER_DATA", "")
    if lacking := [name for name in HERE if not (Path(root) / name).is_dir()]:
        pytest.skip(f"{', '.join(lacking)}: not in MUSTER_DATA ({root or 'not set'})")
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("id", entries())
def test_what_is_here_is_what_runs(id, scale):
    found = entries()[id]
    if found.kind != "runs":
        pytest.skip(f"{id} has no runs")
    for run in plan(found, scale).runs:
        wanted = wanted_data(as_published(found, run.cell, run.row)).partition("/")[0]
        if is_here(wanted):
            assert not run.stand_in, run
            assert run.experiment.data["source"] == wanted


@pytest.mark.parametrize("id", entries())
def test_a_dry_run_names_no_stand_in_for_data_that_is_here(id, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", id, "--dry-run", "--workspace", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert set(re.findall(r"data: \S+ instead of (\S+)", text)).isdisjoint([*HERE, "cmnist"])
    assert undecided(entries()[id]) == []
