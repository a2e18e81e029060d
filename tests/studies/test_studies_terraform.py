"""The study of table 2: what its sweeps run, and its tables from made-up results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import spec_of
from muster.experiment.sweep import load_sweep
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.record import RoundRecord, TrainingRecord
from muster.server.result import Result

FOLDER = Path(__file__).parents[2] / "studies" / "terraform"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("terraform_tables", FOLDER / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("scenario", ["1star", "4"])
def test_four_regimes_three_methods_five_seeds(scenario):
    made = load_sweep(FOLDER / f"table2-{scenario}.toml").experiments()
    regimes = {(run.training["schedule"], run.training["momentum"]) for run in made}
    assert regimes == {("step", 0.0), ("step", 0.9), ("constant", 0.0), ("constant", 0.9)}
    assert {run.training["lr"] for run in made} == {0.001}
    assert {run.selection["method"] for run in made} == {"random", "terraform", "retrain-random"}
    assert len(made) == 4 * 3 * 5


def test_the_convolutional_study_has_the_stated_decay():
    made = load_sweep(FOLDER / "table2-cnn.toml").experiments()
    assert {(run.rounds, run.training["schedule"], run.training["decay_every"]) for run in made} == {
        (60, "step", 10)
    }


def run(method: str, seed: int, accuracy: float, *, trainings: int = 2, complete: bool = True) -> Result:
    metrics = dict.fromkeys(
        ("accuracy", "client_accuracy_mean", "participant_accuracy", "last_iteration_accuracy"), accuracy
    )
    ledger = Ledger()
    ledger.rounds[:] = [Costs(trainings, 0, 0, 0, 80, 80, 0.0) for _ in range(2)]
    ledger.disclosed[:] = [{}, {}]
    records = [RoundRecord(number, [TrainingRecord([0], [1.0])], metrics=dict(metrics)) for number in (1, 2)]
    config = {"training": {"schedule": "step", "momentum": 0.9}, "selection": {"method": method}, "seed": seed}
    module = nn.Linear(1, 1)
    return Result(
        parameters=np.zeros(2, dtype=np.float32),
        records=records,
        ledger=ledger,
        history=History(1),
        spec=spec_of(module),
        complete=complete,
        config=config,
    )


def test_differences_are_paired_and_bold_where_the_interval_leaves_out_zero(tables):
    results = [run("random", seed, 0.5 + 0.1 * seed) for seed in range(3)]
    results += [run("terraform", seed, 0.52 + 0.1 * seed + 0.001 * seed) for seed in range(3)]
    results += [run("retrain-random", seed, 0.5 + 0.1 * (2 - seed)) for seed in range(3)]
    results += [run("random", 3, 0.9), run("terraform", 3, 0.1), run("retrain-random", 3, 0.9, complete=False)]
    found = tables.regimes(results)
    assert list(found) == ["decay, momentum 0.9"]
    assert list(found["decay, momentum 0.9"]["random"]) == [0, 1, 2], "seed 3 is not complete"
    header, first, second, _ = tables.differences(found)
    assert header[2] == "participants"
    # 2.0, 2.1, 2.2 points: mean 2.1, half of the interval 4.303 · 0.1 / √3.
    assert first[1:3] == ["Terraform − Random", "**+2.1 [+1.9, +2.3]**"]
    assert second[2].startswith("+0.0 [")


def test_at_equal_work_only_evaluations_within_the_cheapest_budget_count(tables):
    results = [
        run("random", 0, 0.5),
        run("terraform", 0, 0.6, trainings=4),
        run("retrain-random", 0, 0.5, trainings=4),
    ]
    for result in results:
        result.records[0].metrics["accuracy"] = 0.2
    header, first, *_ = tables.differences(tables.regimes(results))
    # Four trainings are both rounds of random selection (mean of 20 and 50 %) and one of Terraform's (20 %).
    assert first[header.index("at equal work: pooled test set")] == "-15.0 (one seed)"


def test_a_workspace_with_one_study_leaves_the_tables_of_the_others_alone(tables, tmp_path, monkeypatch):
    """The page's tables were made on several machines: none has all the runs."""

    def chosen(names, folder):
        if names != ["terraform-table2-cnn"]:
            raise ConfigError("no such sweep")
        return [run(method, seed, 0.5) for method in tables.METHODS for seed in range(2)]

    monkeypatch.setattr(tables, "chosen_results", chosen)
    page = tmp_path / "page.md"
    page.write_text((FOLDER.parents[1] / "docs" / "results" / "terraform-table2.md").read_text(encoding="utf-8"))
    before = page.read_text().partition("<!-- terraform-table2-cnn: begin -->")
    tables.write(tables.everything(tmp_path), page)
    after = page.read_text().partition("<!-- terraform-table2-cnn: begin -->")
    assert after[0] == before[0]
    assert "| decay, momentum 0.9 | Terraform | 2 | 50.0 ± 0.0 |" in after[2]
    assert after[2].partition("end -->")[2] == before[2].partition("end -->")[2]


def test_the_page_has_the_titles_of_the_studies(tables):
    page = (FOLDER.parents[1] / "docs" / "results" / "terraform-table2.md").read_text(encoding="utf-8")
    for study, title in tables.STUDIES.items():
        assert f"### {title}\n\n<!-- {study}: begin -->" in page
