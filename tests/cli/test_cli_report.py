"""`muster report` and `muster plot` as people call them: from a store and from folders, and with mistakes."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.core.errors import ConfigError
from muster.results.store import Store


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A method that clusters, two seeds, in the sweep `digits`."""
    folder = tmp_path_factory.mktemp("workspace")
    planned = [
        muster.Experiment(
            name="cluster",
            seed=seed,
            rounds=2,
            partition={"scheme": "dirichlet", "clients": 6, "alpha": 1.0},
            model={"name": "mlp", "hidden": [8]},
            selection={"method": "cluster", "clients_per_round": 2},
        )
        for seed in (0, 1)
    ]
    impossible = replace(planned[0], name="impossible", selection={"method": "random", "clients_per_round": 99})
    with Store(folder) as store:
        store.plan([*planned, impossible], "digits")
        for experiment in planned:
            muster.run(experiment, workers=0, store=store, out=folder / f"plain-{experiment.seed}")
    return folder


def call(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_report_of_a_sweep(workspace, tmp_path):
    page = tmp_path / "report.html"
    text = call("report", "digits", "--workspace", workspace, "-o", page)
    assert re.search(r"Report: .*report.html \(0\.\d MB, 2 runs\)", text)
    content = page.read_text(encoding="utf-8")
    assert "<h1>digits</h1>" in content
    assert "1 case with 2 seeds each on digits: 6 clients, 2 rounds" in content
    # From the store: fingerprints, versions, accuracies of individual clients, clusters.
    for run in Store(workspace).runs(status="complete"):
        assert run.fingerprint[:8] in content
    assert muster.__version__ in content
    assert "Groups of clients" in content
    assert "impossible, seed 0: planned without a round." in content
    assert "accuracy on clients' own test data" in html.unescape(content)


def test_a_report_of_one_run_says_so(workspace, tmp_path):
    run = Store(workspace).runs(status="complete")[0]
    text = call("report", run.fingerprint[:8], "--workspace", workspace, "-o", tmp_path / "one.html")
    assert text.rstrip().endswith("MB, 1 run)")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("curves", ["metric=loss", 'per=["round", "bytes"]']),
        ("selection-map", ["order=count"]),
        ("curves-apart", ["last=2", "behind=cluster"]),
        ("weights", []),
        ("clusters", []),
        ("client-accuracy", []),
    ],
)
def test_pictures_of_a_sweep(workspace, tmp_path, kind, settings):
    file = tmp_path / f"{kind}.png"
    options = [word for setting in settings for word in ("--set", setting)]
    assert f"Picture: {file}" in call("plot", kind, "digits", "--workspace", workspace, *options, "-o", file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_folders_with_plain_files_are_enough(workspace, tmp_path):
    file = tmp_path / "map.svg"
    call("plot", "selection-frequency", workspace / "plain-0", workspace / "plain-1", "-o", file)
    assert "<svg" in file.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="no accuracies of individual clients"):
        call("plot", "client-accuracy", workspace / "plain-0", "-o", tmp_path / "x.png")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plot", "curve"], "unknown picture 'curve'"),
        (["plot", "curves", "--set", "unit=bytes"], "'curves' has no option 'unit'"),
        (["plot", "curves", "digits", "--set", "metric=acc"], "unknown metric 'acc'"),
        (["report", "nothing"], "'nothing' is neither a folder with results nor"),
        (["report", "--metric", "acc"], "no run has measured 'acc'"),
        (["report", "--where", "seed=9"], "no run matches"),
    ],
)
def test_mistakes(workspace, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        call(*arguments, "--workspace", workspace)
    assert not list(tmp_path.iterdir())
