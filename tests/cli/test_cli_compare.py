"""`muster compare` as people call it: a store, a sweep, names, conditions, folders; files by suffix; mistakes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.console import output
from muster.core.errors import ConfigError, MusterError, StoreError
from muster.experiment.choice import chosen_results
from muster.results.store import Store

TERMINAL_WIDTH = 100


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Two methods, two seeds, in the sweep `digits`, and a run that belongs to no sweep."""
    folder = tmp_path_factory.mktemp("workspace")
    shared = {
        "rounds": 2,
        "partition": {"scheme": "dirichlet", "clients": 6, "alpha": 1.0},
        "model": {"name": "mlp", "hidden": [8]},
    }
    methods = {
        "random": {"method": "random", "clients_per_round": 2},
        "poc": {"method": "power-of-choice", "clients_per_round": 2},
    }
    planned = [
        muster.Experiment(name=name, seed=seed, selection=selection, **shared)
        for name, selection in methods.items()
        for seed in (0, 1)
    ]
    alone = muster.Experiment(name="alone", selection={"method": "round-robin", "clients_per_round": 2}, **shared)
    with Store(folder) as store:
        store.plan(planned, "digits")
        for experiment in [*planned, alone]:
            muster.run(experiment, workers=0, store=store)
    return folder


def call(*arguments, code=0):
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def names(results):
    return sorted((result.name, result.config["seed"]) for result in results)


def test_everything_in_a_workspace(workspace):
    text = call("--workspace", workspace)
    for words in ("Scores at the end", "at equal work", "To reach", "against random", "Participation", "Overhead"):
        assert words in text
    assert "Not the same seeds" in text
    assert "poc" in text


def test_choices(workspace):
    everything = [("alone", 0), ("poc", 0), ("poc", 1), ("random", 0), ("random", 1)]
    assert names(chosen_results(folder=workspace)) == everything
    assert names(chosen_results(["digits"], folder=workspace)) == everything[1:]
    assert names(chosen_results(["poc", "alone"], folder=workspace)) == everything[:3]
    assert names(chosen_results(["digits", "random"], folder=workspace)) == everything[1:]
    assert names(chosen_results(where=["selection.method=random"], folder=workspace)) == everything[3:]
    assert names(chosen_results(where=["selection.method=random", "seed=1"], folder=workspace)) == everything[4:]
    assert names(chosen_results([str(workspace)], ["seed=1"])) == [("poc", 1), ("random", 1)]
    with Store(workspace) as store:
        prefix = store.runs(name="alone")[0].fingerprint[:6]
    assert names(chosen_results([prefix], folder=workspace)) == [("alone", 0)]


def test_folders_of_plain_files(workspace, tmp_path):
    for result in chosen_results(["digits"], folder=workspace):
        result.save(tmp_path / "plain" / f"{result.name}-{result.config['seed']}")
    assert len(chosen_results([str(tmp_path / "plain")])) == 4
    assert names(chosen_results([str(tmp_path / "plain" / "poc-1"), str(tmp_path / "plain" / "poc-0")])) == [
        ("poc", 0),
        ("poc", 1),
    ]
    assert "against random" in call(tmp_path / "plain")


@pytest.mark.parametrize("suffix", [".md", ".tex", ".csv", ".json"])
def test_files_by_suffix(workspace, tmp_path, suffix):
    file = tmp_path / f"table{suffix}"
    text = call("digits", "--workspace", workspace, "--out", file, "--table", "scores", "--last", 2)
    assert f"Written: {file}" in text.replace("\n", "")
    content = file.read_text()
    assert "poc" in content
    if suffix == ".json":
        assert [list(problem["tables"]) for problem in json.loads(content)["problems"]] == [["scores"]]


def test_options_arrive(workspace):
    text = call(
        "digits", "--workspace", workspace, "--metric", "loss", "--target", 1.5, "--at", "round=1",
        "--baseline", "poc", "--by", "name", "--sort", "--correction", "none", "--sustain", 2,
    )  # fmt: skip
    assert "Scores after 1 round" in text
    assert "To reach loss ≤ 1.5000, 2 evaluations in a row" in text
    assert "Loss against poc" in text
    assert "Holm" not in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["digist"], "did you mean 'digits'"),
        (["--where", "seed=7"], "no run matches: seed=7"),
        (["--where", "nonsense"], "bad setting 'nonsense'"),
        (["--metric", "acc"], "no run has measured 'acc'"),
        (["--out", "x.pdf"], "unknown format"),
    ],
)
def test_mistakes_are_explained(workspace, arguments, problem):
    with pytest.raises(MusterError, match=problem):
        call(*arguments, "--workspace", workspace)


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        chosen_results(folder=tmp_path / "nowhere")
    with Store(tmp_path / "empty"):
        pass
    with pytest.raises(ConfigError, match="there are no runs yet"):
        chosen_results(folder=tmp_path / "empty")


def test_a_pipe_gets_plain_text_of_80_columns(workspace, monkeypatch):
    monkeypatch.setattr(output.out, "_width", None)
    monkeypatch.delenv("COLUMNS", raising=False)
    result = CliRunner().invoke(app, ["compare", "digits", "--workspace", str(workspace)], catch_exceptions=False)
    assert "\x1b" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output
