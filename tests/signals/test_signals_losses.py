"""Losses as signals."""

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.signals._evaluation import EVALUATION_BATCH
from muster.signals.losses import BatchLoss, Loss, SquaredLoss, TrainLoss, mean_loss
from muster.training.context import TrainOutcome


def textbook_loss(client):
    client.model.module.eval()
    with torch.no_grad():
        logits = client.model.module(client.features).double().numpy()
    labels = client.labels.numpy()
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return -np.log(shifted[np.arange(len(labels)), labels] / shifted.sum(axis=1)).mean()


def test_loss_is_the_mean_cross_entropy_and_leaves_the_model_alone(make_client):
    client = make_client()
    before = client.model.vector()
    assert Loss().measure(client) == pytest.approx(textbook_loss(client), abs=1e-6)
    np.testing.assert_array_equal(client.model.vector(), before)


def test_evaluation_in_parts_equals_evaluation_at_once():
    torch.manual_seed(0)
    module, size = nn.Linear(2, 3), 2 * EVALUATION_BATCH + 7
    features, labels = torch.randn(size, 2), torch.randint(0, 3, (size,))
    whole = nn.functional.cross_entropy(module(features), labels).item()
    assert mean_loss(module, features, labels) == pytest.approx(whole, rel=1e-5)


def test_batch_loss_sees_one_fresh_batch(make_client):
    client = make_client(size=30)
    first, second = BatchLoss().measure(client), BatchLoss().measure(client)
    assert first != second
    assert BatchLoss(batch=30).measure(client) == pytest.approx(Loss().measure(client), rel=1e-5)


def test_batch_loss_costs_a_batch():
    assert BatchLoss().samples(30, 8) == 8
    assert BatchLoss(batch=16).samples(30, 8) == 16
    assert BatchLoss(batch=16).samples(5, 8) == 5
    assert Loss().samples(30, 8) == 30


def test_by_products_of_training(make_client):
    client = make_client(outcome=TrainOutcome(mean_loss=1.5, mean_squared_loss=3.0))
    assert TrainLoss().measure(client).tolist() == [1.5]
    assert SquaredLoss().measure(client).tolist() == [3.0]


@pytest.mark.parametrize("signal", [TrainLoss(), SquaredLoss()])
def test_by_products_do_not_exist_before_training(make_client, signal):
    with pytest.raises(ConfigError, match="only after training"):
        signal.measure(make_client())
