"""Results: series, tables, pictures and files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import muster
from muster.core.errors import ConfigError
from muster.report.tables import readable_bytes
from muster.server.record import GroupAccuracy


@pytest.fixture
def pair(tiny):
    terraform = {"method": "terraform", "clients_per_round": 8, "min_clients": 2}
    return [muster.run(tiny(name="a"), workers=0), muster.run(tiny(name="b", selection=terraform), workers=0)]


def test_metrics_have_one_row_a_round_with_the_work_so_far(pair):
    rows = pair[1].metrics
    assert [row["round"] for row in rows] == [1, 2, 3]
    trained = [sum(len(clients) for clients in round) for round in pair[1].selections]
    assert [row["client_trainings"] for row in rows] == np.cumsum(trained).tolist()
    assert pair[1].to_pandas().shape == (3, len(rows[0]))


def test_series_and_unknown_names(pair):
    x, y = pair[0].series("accuracy", per="client_trainings")
    assert x.tolist() == [5, 10, 15]
    assert (pair[0].final(), pair[0].best()) == (y[-1], y.max())
    assert pair[0].best("loss") == pair[0].series("loss")[1].min()
    with pytest.raises(ConfigError, match="unknown metric 'acuracy'"):
        pair[0].series("acuracy")


def test_pictures_and_files(pair, tmp_path):
    pair[0].plot(path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    pair[0].save(tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out" / "parameters.npy"), pair[0].parameters)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (6.9e6, "6.9 MB"), (2e15, "2000.0 TB")]
)
def test_readable_bytes(count, text):
    assert readable_bytes(count) == text


def test_the_summary_has_the_metrics_of_the_last_round(tiny):
    result = muster.run(tiny(rounds=2), workers=0)
    assert result.metrics[0] != result.metrics[1]
    assert result.summary()["metrics"] == result.metrics[1]


def test_what_was_never_measured_is_not_a_number(made):
    result = made(accuracies=(math.nan, math.nan), metrics={"loss": math.nan})
    assert math.isnan(result.final())
    assert math.isnan(result.best())
    assert result.main_metric == "loss"
    assert repr(result) == "Result('a': 2 rounds)"


def test_a_result_is_summed_up_by_its_accuracy_or_else_by_its_error(made):
    accurate = made(accuracies=(0.2, 0.9, 0.5))
    assert (accurate.main_metric, accurate.final(), accurate.best()) == ("accuracy", 0.5, 0.9)
    without = made(accuracies=(math.nan,) * 3, metrics={"mae": 2.0, "loss": 3.0})
    assert (without.main_metric, without.final()) == ("mae", 2.0)
    assert repr(made(complete=False)) == "Result('a': 3 rounds, accuracy 0.8000, not complete)"


def test_the_best_of_an_error_is_the_lowest(made):
    result = made(accuracies=(0.2, 0.9, 0.5))
    assert result.best("loss") == pytest.approx(0.1)
    assert result.best("accuracy") == 0.9


def test_rounds_without_an_evaluation_are_not_in_a_series(made):
    x, y = made(accuracies=(0.2, math.nan, 0.5)).series("accuracy", per="client_trainings")
    assert x.tolist() == [2, 6]
    assert y.tolist() == [0.2, 0.5]
    with pytest.raises(ConfigError, match=r"unknown metric 'seconds'.*\n.*accuracy, bytes_down"):
        made().series("accuracy", per="seconds")


def test_who_was_refused_and_who_failed_is_listed_by_round(made):
    result = made(accuracies=(0.2, 0.5))
    result.records[0].trainings[0].rejected[3] = "too long"
    result.records[1].trainings[0].failed[4] = "gone"
    assert result.rejected == [(1, 3, "too long"), (2, 4, "gone")]
    assert result.summary()["rejected"] == 2


def test_the_summary_has_everything(made):
    result = made(accuracies=(0.2, 0.9, 0.5), seconds=2.0)
    result.records[0].groups = [GroupAccuracy(0, 1, 0.5, 10)]
    result.ledger.disclosed[1]["model update"] = 3
    summary = result.summary()
    assert (summary["name"], summary["rounds"], summary["complete"]) == ("a", 3, True)
    assert summary["best_accuracy"] == 0.9
    assert summary["groups"] == [{"label": 0, "attribute": 1, "accuracy": 0.5, "samples": 10}]
    assert summary["costs"]["virtual_seconds"] == 6.0
    assert summary["costs"]["client_trainings"] == 6
    assert summary["disclosed"] == {"model update": 3}
    assert (summary["privacy"], summary["rejected"]) == ([], 0)


def test_a_result_without_rounds_has_a_summary_too(made):
    nothing = made(accuracies=())
    assert nothing.summary()["metrics"] == {}
    assert math.isnan(nothing.summary()["best_accuracy"])


def test_the_model_is_a_new_network_with_the_trained_parameters(tiny):
    result = muster.run(tiny(rounds=1), workers=0)
    first, second = result.model(), result.model()
    assert first is not second
    assert not first.training
    trained = np.concatenate([p.detach().numpy().ravel() for p in first.parameters()])
    assert np.array_equal(trained, result.parameters)
    # Whoever trains it further does not change the result.
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert np.array_equal(next(second.parameters()).detach().numpy().ravel(), result.parameters[: 16 * 64])
    with pytest.raises(ConfigError, match="the network Linear has 6 numbers in other shapes than the result"):
        result.model(torch.nn.Linear(2, 2))
