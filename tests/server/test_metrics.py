"""Metrics against scikit-learn and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from muster.engine.base import Evaluation, HeldBack, RowSums
from muster.server.metrics import (
    client_accuracies,
    client_scores,
    group_scores,
    lower_is_better,
    macro_scores,
    spread_scores,
    summarise_metrics,
)
from muster.training.objectives.regression import Regression

NOBODY = np.empty(0, dtype=np.int64)


def evaluation(confusion, correct=(), count=(), **groups) -> Evaluation:
    correct, count = np.array(correct, dtype=np.int64), np.array(count, dtype=np.int64)
    return Evaluation(np.asarray(confusion), 6.0, correct, correct * 1.0, count, **groups)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_macro_scores_are_those_of_scikit_learn(pairs):
    truth, predicted = map(np.array, zip(*pairs, strict=True))
    confusion = np.bincount(truth * 4 + predicted, minlength=16).reshape(4, 4)
    present = np.unique(truth)
    expected = precision_recall_fscore_support(truth, predicted, labels=present, average="macro", zero_division=0)
    scores = macro_scores(confusion)
    assert [scores["precision"], scores["recall"], scores["f1"]] == pytest.approx(expected[:3])
    assert summarise_metrics(evaluation(confusion), NOBODY)["accuracy"] == pytest.approx(
        accuracy_score(truth, predicted)
    )


def test_the_accuracies_by_hand():
    row = client_scores(evaluation(np.eye(2), [9, 1, 0, 0], [10, 2, 4, 0]), np.array([0, 1, 3]), np.array([1, 3]))
    assert row["client_accuracy_mean"] == pytest.approx((0.9 + 0.5 + 0.0) / 3)
    assert row["client_accuracy_weighted"] == pytest.approx(10 / 16)
    assert row["client_accuracy_worst"] == 0
    assert row["client_accuracy_std"] == pytest.approx(np.std([0.9, 0.5, 0.0]))
    assert row["participant_accuracy"] == pytest.approx((0.9 + 0.5) / 2), "client 3 has no test data"
    assert row["last_iteration_accuracy"] == pytest.approx(0.5), "client 3 has no test data"


def test_with_one_training_the_last_iteration_is_all_participants():
    row = client_scores(evaluation(np.eye(2), [9, 1, 0], [10, 2, 4]), np.array([0, 1]))
    assert row["last_iteration_accuracy"] == row["participant_accuracy"] == pytest.approx(0.7)


def test_clients_without_test_data_give_no_number():
    row = client_scores(evaluation(np.eye(2), [0, 0], [0, 0]), np.array([0]))
    assert all(math.isnan(value) for value in row.values())


def test_worst_group():
    correct, count = np.array([[9, 8], [6, 0]]), np.array([[10, 10], [10, 0]])
    scores = group_scores(correct, count)
    assert scores["worst_group_accuracy"] == pytest.approx(0.6), "the empty group does not count"
    assert scores["group_gap"] == pytest.approx((0.9 + 0.8 + 0.6) / 3 - 0.6)


def test_loss_is_a_mean():
    assert summarise_metrics(evaluation([[2, 1], [0, 3]]), NOBODY)["loss"] == pytest.approx(1.0)


TESTED = st.integers(0, 3).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))


@given(st.lists(TESTED, min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_every_client_with_test_data_counts_also_one_with_a_single_sample(clients):
    correct, count = zip(*clients, strict=True)
    row = client_scores(evaluation(np.eye(2), correct, count), NOBODY)
    own = [right / tested for right, tested in clients if tested]
    if own:
        assert row["client_accuracy_mean"] == pytest.approx(np.mean(own))
        assert row["client_accuracy_worst"] == pytest.approx(min(own))
    else:
        assert math.isnan(row["client_accuracy_mean"])


def test_what_is_held_back_has_a_mean_of_its_own():
    row = summarise_metrics(evaluation(np.eye(2), validation=HeldBack(correct=3, loss_sum=10.0, count=4)), NOBODY)
    assert (row["validation_accuracy"], row["validation_loss"]) == (0.75, 2.5)


def test_the_worst_group_without_classes_is_one_that_occurs_if_only_once():
    objective = Regression()
    rows = objective.rows(torch.tensor([[1.0], [1.0], [5.0]]), torch.tensor([0.0, 0.0, 0.0])).numpy()
    groups = np.stack([rows[:2].sum(axis=0), rows[2], 0 * rows[2]])  # two samples, one, none
    sums = RowSums(objective, rows.sum(axis=0), rows[:0], groups)
    row = summarise_metrics(evaluation(np.zeros((0, 0)), row_sums=sums), NOBODY)
    assert row[f"worst_group_{objective.score}"] == pytest.approx(5.0)
    assert row["group_gap"] == pytest.approx(5.0 - 3.0)


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("loss", True),
        ("validation_loss", True),
        ("client_accuracy_std", True),
        ("client_mae_std", True),
        ("group_gap", True),
        ("mae", True),
        ("client_mae_mean", True),
        ("client_mae_worst_tenth", True),
        ("participant_mae", True),
        ("validation_mae", True),
        ("worst_group_mae", True),
        ("accuracy", False),
        ("client_accuracy_mean", False),
        ("last_iteration_accuracy", False),
        ("worst_group_accuracy", False),
        ("f1", False),
        ("r2", False),
        ("accuracy_std", False),
    ],
)
def test_of_errors_less_is_better_whatever_they_are_measured_on(metric, lower):
    assert lower_is_better(metric) == lower


def test_the_worst_tenth_is_at_least_one_client_and_the_largest_error_is_the_worst():
    values = np.arange(20.0)
    more = spread_scores("accuracy", values, 0.5, NOBODY)
    assert (more["client_accuracy_worst"], more["client_accuracy_worst_tenth"]) == (0.0, 0.5)
    assert spread_scores("accuracy", values[:19], 0.5, NOBODY)["client_accuracy_worst_tenth"] == 0.0
    less = spread_scores("mae", values, 0.5, NOBODY, less=True)
    assert (less["client_mae_worst"], less["client_mae_worst_tenth"]) == (19.0, 18.5)
    few = spread_scores("accuracy", np.array([0.75, np.nan, 0.5]), 0.625, NOBODY)
    assert few["client_accuracy_worst_tenth"] == 0.5
    assert math.isnan(few["participant_accuracy"])
    assert few["client_accuracy_weighted"] == 0.625


def test_nobody_was_evaluated():
    """A federation's clients may all be away: then there is no number, and no division by zero."""
    row = summarise_metrics(evaluation(np.zeros((2, 2), dtype=np.int64)), NOBODY)
    assert sorted(row) == ["accuracy", "loss"]
    assert all(math.isnan(value) for value in row.values())


def test_metrics_that_were_measured_elsewhere_are_taken_as_they_are():
    row = summarise_metrics(evaluation(np.eye(2), measured={"accuracy": 0.25, "auc": 0.5}), NOBODY)
    assert (row["accuracy"], row["auc"]) == (0.25, 0.5)
    assert math.isnan(row["loss"])


def test_the_metrics_of_numbers_instead_of_classes():
    objective = Regression()
    rows = objective.rows(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([0.0, 0.0, 0.0])).numpy()
    clients = np.stack([rows[0], rows[1] + rows[2], 0 * rows[0]])
    kept = HeldBack(correct=0, loss_sum=6.0, count=4, total=rows[0] + rows[1])
    sums = RowSums(objective, rows.sum(axis=0), clients)
    measured = Evaluation(
        np.zeros((0, 0), dtype=np.int64),
        6.0,
        NOBODY,
        np.zeros(0),
        np.array([1, 2, 0]),
        validation=kept,
        row_sums=sums,
    )
    row = summarise_metrics(measured, np.array([0, 2]), np.array([1]))
    assert math.isnan(row["accuracy"])
    assert (row["loss"], row["mae"]) == (2.0, pytest.approx(4.0))
    assert (row["client_mae_mean"], row["client_mae_weighted"]) == pytest.approx((3.25, 4.0))
    assert row["client_mae_worst"] == pytest.approx(5.5), "the largest error"
    assert (row["participant_mae"], row["last_iteration_mae"]) == pytest.approx((1.0, 5.5))
    assert (row["validation_loss"], row["validation_mae"]) == (1.5, pytest.approx(2.0))
    np.testing.assert_allclose(client_accuracies(measured), [1.0, 5.5, np.nan])


def test_each_clients_accuracy_is_that_on_its_own_data():
    got = client_accuracies(evaluation(np.eye(2), [1, 3, 0], [1, 4, 0]))
    np.testing.assert_allclose(got, [1.0, 0.75, np.nan])
    assert got.dtype == np.float32
    assert client_accuracies(evaluation(np.eye(2), [0, 0], [0, 0])) is None


def test_no_rows_no_metrics_of_numbers():
    objective = Regression()
    width = objective.rows(torch.tensor([[1.0]]), torch.tensor([0.0])).shape[1]
    sums = RowSums(objective, np.zeros(width), np.zeros((0, width)))
    row = summarise_metrics(evaluation(np.zeros((0, 0)), row_sums=sums), NOBODY)
    assert sorted(row) == ["accuracy", "loss"]
    assert all(math.isnan(value) for value in row.values())
