"""The private estimate of a client's (class, attribute) table, on data whose attribute only the test knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from muster.heterogeneity.estimate import (
    EstimateRecipe,
    Estimator,
    Grouping,
    balanced_batches,
    generalised_cross_entropy,
    two_way,
    with_new_head,
)
from muster.heterogeneity.metrics import triplet

QUICK = EstimateRecipe(biased_steps=60, attribute_steps=100, lr=0.05)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def net(classes, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(classes)


def samples(matrix, seed=0, shortcut=3.0):
    """Samples with these counts. The attribute is easy to see, the class is hard."""
    rng = np.random.default_rng(seed)
    matrix = np.array(matrix)
    labels = np.repeat(np.arange(len(matrix)), matrix.sum(axis=1))
    attributes = np.concatenate([np.repeat([0, 1], row) for row in matrix])
    features = rng.standard_normal((len(labels), 6))
    features[:, 0] += shortcut * (2 * attributes - 1)
    features[:, 1] += 0.3 * (labels - labels.mean())
    return torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)


def test_generalised_cross_entropy_lies_between_cross_entropy_and_mean_absolute_error():
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    p = torch.softmax(logits, dim=1)[:, 0]
    torch.testing.assert_close(generalised_cross_entropy(logits, labels, 1.0), (1 - p).mean())
    almost = generalised_cross_entropy(logits.double(), labels, 1e-6)
    torch.testing.assert_close(almost, nn.functional.cross_entropy(logits.double(), labels), atol=1e-5, rtol=0)
    torch.testing.assert_close(generalised_cross_entropy(logits, labels, 0.3), ((1 - p**0.3) / 0.3).mean())


def test_its_gradient_survives_hopeless_samples():
    logits = torch.tensor([[0.0, 200.0]], requires_grad=True)
    generalised_cross_entropy(logits, torch.tensor([0]), 0.3).backward()
    assert torch.isfinite(logits.grad).all()


def test_batches_are_balanced():
    labels = np.array([0] * 95 + [3] * 5)
    drawn = balanced_batches(labels, 200, 28, np.random.default_rng(0))
    assert drawn.shape == (200, 28)
    share = (labels[drawn] == 3).mean()
    assert abs(share - 0.5) < 4 * np.sqrt(0.25 / drawn.size)


def test_the_pivot_has_the_smallest_gap_then_the_most_samples_then_the_lowest_label():
    none = torch.zeros(0, 1)

    def group(label, majority, minority):
        return Grouping(label, np.arange(majority + minority) < majority, none, net(2))

    assert group(1, 5, 4).rank < group(0, 9, 3).rank
    assert group(1, 20, 16).rank < group(0, 10, 6).rank
    assert group(0, 10, 6).rank < group(1, 6, 10).rank


@pytest.mark.parametrize("matrix", [[[90, 10], [10, 90]], [[80, 20], [30, 70]]])
def test_a_spurious_correlation_is_found(matrix):
    features, labels = samples(matrix)
    estimated = Estimator(net(2), "head", 2, QUICK, np.random.default_rng(0)).matrix(features, labels)
    np.testing.assert_array_equal(estimated.sum(axis=1), np.sum(matrix, axis=1))
    found, true = triplet(estimated), triplet(matrix)
    assert found[0] == pytest.approx(true[0], abs=1e-12)
    assert found[2] == pytest.approx(true[2], abs=0.15)


def test_one_against_the_rest_for_more_classes():
    matrix = [[60, 6], [6, 60], [20, 10]]
    features, labels = samples(matrix)
    estimator = Estimator(net(3), "head", 3, QUICK, np.random.default_rng(1))
    groupings = list(estimator.groupings(features, labels))
    assert [(g.label, len(g.correct)) for g in groupings] == [(0, 66), (1, 66), (2, 30)]
    estimated = estimator.matrix(features, labels)
    assert estimated.shape == (3, 2)
    np.testing.assert_array_equal(estimated.sum(axis=1), [66, 66, 30])


def test_absent_classes_stay_empty_and_are_no_pivot():
    features, labels = samples([[40, 10], [0, 0], [10, 40], [0, 0]])
    estimated = Estimator(net(4), "head", 4, QUICK, np.random.default_rng(0)).matrix(features, labels)
    np.testing.assert_array_equal(estimated.sum(axis=1), [50, 0, 50, 0])


def test_without_mistakes_there_is_no_estimate():
    features, labels = samples([[50, 0], [0, 50]], shortcut=20.0)
    assert Estimator(net(2), "head", 2, QUICK, np.random.default_rng(0)).matrix(features, labels) is None


def test_the_same_generator_gives_the_same_estimate_and_the_model_is_untouched():
    features, labels = samples([[60, 30], [30, 60]])
    model = net(2)
    before = [parameter.clone() for parameter in model.parameters()]
    one, other = (
        Estimator(model, "head", 2, EstimateRecipe(), np.random.default_rng(5)).matrix(features, labels)
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert model.training


def test_a_new_head_leaves_the_original_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 7)))
    changed = with_new_head(model, "1.1", np.random.default_rng(0))
    assert changed(torch.zeros(2, 3)).shape == (2, 2)
    assert model(torch.zeros(2, 3)).shape == (2, 7)
    assert torch.equal(two_way(4, np.random.default_rng(0)).weight, changed[1][1].weight)
