"""What the scripts behind the pages of results share: nothing runs twice, and words around tables stay."""

from __future__ import annotations

import argparse

import pytest

import _runs
from _runs import Case, Study, column, last_rounds, ordered, run_missing, spread, write_measured
from muster.core.errors import ConfigError

DIGITS = {
    "data": {"source": "digits"},
    "partition": {"scheme": "dirichlet", "clients": 5, "alpha": 1.0},
    "training": {"epochs": 1, "batch_size": 32},
    "selection": {"clients_per_round": 2},
}
STUDY = Study(
    "tiny",
    DIGITS,
    [Case(name, {"selection": {"method": name}}) for name in ("random", "round-robin")],
)


def command(folder, **changes):
    chosen = {"rounds": 2, "seeds": [0, 1], "methods": None, "workers": 0, "runs": folder}
    return argparse.Namespace(**{**chosen, **changes})


def test_finished_runs_are_read_not_run_again(tmp_path, monkeypatch):
    first = run_missing(STUDY, command(tmp_path))
    assert [len(runs) for runs in first.values()] == [2, 2]
    monkeypatch.setattr("muster.server.Server._round", lambda *_: pytest.fail("a finished run was run again"))
    again = run_missing(STUDY, command(tmp_path))
    for name, runs in first.items():
        assert [result.metrics for result in runs] == [result.metrics for result in again[name]]


def test_other_settings_are_other_runs(tmp_path):
    run_missing(STUDY, command(tmp_path, seeds=[0], methods=["random"]))
    run_missing(STUDY, command(tmp_path, seeds=[0], methods=["random"], rounds=3))
    assert len(list((tmp_path / "tiny").iterdir())) == 2


def test_unknown_methods_are_named():
    with pytest.raises(ConfigError, match="randm"):
        STUDY.chosen(["randm"])


def test_cells_and_order(tmp_path):
    results = run_missing(STUDY, command(tmp_path))
    measure = last_rounds("accuracy", 1)
    best, other = ordered(results, measure).values()
    assert sum(map(measure, best)) >= sum(map(measure, other))
    expected = sum(result.final() for result in results["random"]) / 2
    assert column({"random": results["random"]}, measure, ".3f")[0].startswith(f"{expected:.3f} ± ")


def test_spread_of_one_value_has_no_deviation():
    assert spread([0.25], ".2f") == "0.25"
    assert spread([1.0, 3.0]) == "2.0 ± 1.4"
    assert spread([1.0, 3.0], "+.1f") == "+2.0 ± 1.4"


def test_words_around_the_tables_stay(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{_runs.BEGIN}\nold\n{_runs.END}\nafter\n")
    write_measured(page, "new")
    assert page.read_text() == f"before\n{_runs.BEGIN}\n\nnew\n\n{_runs.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ConfigError, match="no place"):
        write_measured(page, "new")
