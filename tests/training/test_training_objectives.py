"""Objectives: losses and metrics on worked examples, against textbook forms, and however samples are divided."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import nn

from muster.core.errors import ConfigError
from muster.training.objectives import Classification, objectives
from muster.training.objectives.multi_label import MultiLabel
from muster.training.objectives.next_token import NextToken
from muster.training.objectives.regression import Regression
from muster.training.objectives.segmentation import Segmentation


def drawn(name, count, rng, classes=3):
    """Outputs and targets of some samples of a task."""
    normal = torch.from_numpy(rng.normal(size=(count, classes, 4, 5)).astype(np.float32))
    match name:
        case "classification":
            return normal[:, :, 0, 0], torch.from_numpy(rng.integers(0, classes, count))
        case "multi-label":
            return normal[:, :, 0, 0], torch.from_numpy(rng.integers(0, 2, (count, classes)).astype(np.float32))
        case "regression":
            return normal[:, :1, 0, 0], normal[:, 1, 1, 1]
        case "segmentation":
            return normal, torch.from_numpy(rng.choice([0, 1, 2, 255], (count, 4, 5)))
        case "next-token":
            return normal[:, :, 0].transpose(1, 2), torch.from_numpy(rng.choice([0, 1, 2, -100], (count, 5)))
    raise AssertionError(name)


def totals(objective, outputs, targets):
    return objective.rows(outputs, targets).sum(0).numpy()


def test_every_task_of_data_has_an_objective():
    from muster.data.federated import TASKS

    assert sorted(objectives.names()) == sorted(TASKS)
    assert all(objectives.build(name, {}).task == name for name in objectives)


@pytest.mark.parametrize("name", objectives.names())
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), cut=st.integers(1, 11))
def test_sums_do_not_depend_on_how_samples_are_divided(name, seed, cut):
    outputs, targets = drawn(name, 12, np.random.default_rng(seed))
    objective = objectives.build(name, {"metrics": {"size": lambda y, t: y.flatten(1).abs().sum(1)}})
    whole = objective.scores(totals(objective, outputs, targets))
    parts = totals(objective, outputs[:cut], targets[:cut]) + totals(objective, outputs[cut:], targets[cut:])
    divided = objective.scores(parts)
    assert whole.keys() == divided.keys()
    for metric, value in whole.items():
        np.testing.assert_allclose(divided[metric], value, rtol=1e-6, err_msg=metric)
    np.testing.assert_allclose(whole["size"], outputs.flatten(1).abs().sum(1).mean(), rtol=1e-6)


@pytest.mark.parametrize("name", objectives.names())
def test_mean_and_total_are_those_of_the_losses(name):
    outputs, targets = drawn(name, 7, np.random.default_rng(1))
    objective = objectives.build(name, {})
    losses = objective.losses(outputs, targets)
    assert losses.shape == (7,)
    torch.testing.assert_close(objective.mean_loss(outputs, targets), losses.mean())
    torch.testing.assert_close(objective.total_loss(outputs, targets), losses.sum())


@pytest.mark.parametrize("name", objectives.names())
def test_rows_of_many_sums_at_once(name):
    outputs, targets = drawn(name, 9, np.random.default_rng(2))
    objective = objectives.build(name, {})
    rows = objective.rows(outputs, targets).numpy()
    stacked = np.stack([rows[:4].sum(0), rows[4:].sum(0)])
    for metric, values in objective.scores(stacked).items():
        one_by_one = [objective.scores(row)[metric] for row in stacked]
        np.testing.assert_allclose(values, one_by_one, err_msg=metric)
    nobody = objective.scores(np.zeros((1, rows.shape[1])))
    assert all(np.isnan(values).all() or metric in ("f1", "mean_iou") for metric, values in nobody.items())


@pytest.mark.parametrize("name", [name for name in objectives.names() if name != "classification"])
def test_objectives_declare_the_metrics_that_they_have(name):
    objective = objectives.build(name, {})
    scores = objective.scores(totals(objective, *drawn(name, 5, np.random.default_rng(0))))
    assert set(objective.usual_metrics) == set(scores)
    assert objective.score in scores
    assert set(objective.errors) <= set(scores)


def test_the_usual_loss_is_the_librarys_to_the_bit():
    outputs, targets = drawn("classification", 64, np.random.default_rng(3))
    objective = Classification()
    assert objective.usual
    assert torch.equal(objective.mean_loss(outputs, targets), nn.functional.cross_entropy(outputs, targets))
    summed = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    assert torch.equal(objective.total_loss(outputs, targets), summed)
    assert not Classification(loss=nn.CrossEntropyLoss()).usual


def test_multi_label_against_scikit_learn():
    outputs, targets = drawn("multi-label", 40, np.random.default_rng(4))
    scores = MultiLabel().scores(totals(MultiLabel(), outputs, targets))
    true, predicted = targets.numpy().astype(int), (outputs.numpy() > 0).astype(int)
    assert scores["accuracy"] == pytest.approx(1 - sk.hamming_loss(true, predicted))
    assert scores["exact_match"] == pytest.approx(sk.accuracy_score(true, predicted))
    assert scores["f1"] == pytest.approx(sk.f1_score(true, predicted, average="macro"))
    assert scores["f1_micro"] == pytest.approx(sk.f1_score(true, predicted, average="micro"))


def test_regression_against_scikit_learn_and_without_broadcasting():
    outputs, targets = drawn("regression", 40, np.random.default_rng(5))
    scores = Regression().scores(totals(Regression(), outputs, targets))
    true, predicted = targets.numpy(), outputs[:, 0].numpy()
    assert scores["mae"] == pytest.approx(sk.mean_absolute_error(true, predicted), rel=1e-5)
    assert scores["rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(true, predicted)), rel=1e-5)
    assert scores["r2"] == pytest.approx(sk.r2_score(true, predicted), rel=1e-5)
    # A column of outputs and a vector of targets: 40 losses, not 40 × 40.
    expected = nn.functional.mse_loss(outputs[:, 0], targets)
    torch.testing.assert_close(Regression().mean_loss(outputs, targets), expected)
    torch.testing.assert_close(Regression(loss=nn.MSELoss()).mean_loss(outputs, targets), expected)


def test_r2_is_not_defined_where_targets_are_equal():
    same = torch.full((5,), 0.1)
    assert math.isnan(Regression().scores(totals(Regression(), torch.zeros(5, 1), same))["r2"])


def test_segmentation_against_scikit_learn_leaves_ignored_pixels_out():
    outputs, targets = drawn("segmentation", 6, np.random.default_rng(6))
    scores = Segmentation().scores(totals(Segmentation(), outputs, targets))
    counted = targets.numpy().ravel() != 255
    true, predicted = targets.numpy().ravel()[counted], outputs.argmax(1).numpy().ravel()[counted]
    assert scores["accuracy"] == pytest.approx(sk.accuracy_score(true, predicted))
    assert scores["mean_iou"] == pytest.approx(sk.jaccard_score(true, predicted, average="macro"))


def test_next_token_perplexity_is_of_positions_not_of_texts():
    outputs, targets = drawn("next-token", 6, np.random.default_rng(7))
    scores = NextToken().scores(totals(NextToken(), outputs, targets))
    flat = nn.functional.cross_entropy(outputs.reshape(-1, 3), targets.reshape(-1), ignore_index=-100)
    assert scores["perplexity"] == pytest.approx(math.exp(flat), rel=1e-5)
    counted = targets != -100
    right = (outputs.argmax(2) == targets)[counted].double().mean()
    assert scores["accuracy"] == pytest.approx(float(right))


def test_a_text_without_positions_has_no_loss():
    nothing = torch.full((2, 5), -100)
    assert NextToken().losses(torch.zeros(2, 5, 3), nothing).tolist() == [0.0, 0.0]


def test_own_loss_by_object_by_name_and_from_pytorch(tmp_path, monkeypatch):
    (tmp_path / "mylosses.py").write_text("def twice(y, t):\n    return 2 * (y.argmax(1) != t).float()\n")
    monkeypatch.chdir(tmp_path)
    outputs, targets = drawn("classification", 8, np.random.default_rng(8))
    named = Classification(loss="mylosses:twice").losses(outputs, targets)
    assert (
        named.tolist()
        == Classification(loss=lambda y, t: 2 * (y.argmax(1) != t).float()).losses(outputs, targets).tolist()
    )
    smooth = Classification(loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    expected = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
    torch.testing.assert_close(smooth.mean_loss(outputs, targets), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "nowhere:loss"}, "the module nowhere cannot be imported"),
        ({"loss": "math:nothing"}, "has no nothing"),
        ({"loss": "math"}, "module:name"),
        ({"loss": "math:pi"}, "a function of outputs and targets"),
        ({"metrics": {"loss": lambda y, t: t}}, "cannot be called 'loss'"),
        ({"metrics": {"f1": lambda y, t: t}}, "cannot be called 'f1'"),
    ],
)
def test_wrong_functions_are_told(options, message):
    with pytest.raises(ConfigError, match=message):
        objectives.build("classification", options).resolve()


@pytest.mark.parametrize("given", [lambda y, t: y.mean(), lambda y, t: 1.0, lambda y, t: y[:1, 0]])
def test_a_loss_must_have_one_number_a_sample(given):
    outputs, targets = drawn("classification", 8, np.random.default_rng(9))
    with pytest.raises(ConfigError, match="one number per sample"):
        Classification(loss=given).losses(outputs, targets)
