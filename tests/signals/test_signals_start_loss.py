"""The loss before training, as training clients report it."""

import numpy as np
import pytest
import torch

from muster.signals.losses import Loss
from muster.signals.start_loss import StartLoss
from muster.training.base import Plain, train


def test_is_the_loss_of_the_received_model_and_leaves_the_trained_one(make_client) -> None:
    client = make_client()
    before = Loss().measure(client)
    train(client, Plain(), 0.1)
    trained = client.model.vector()
    assert Loss().measure(client) != pytest.approx(before)
    np.testing.assert_allclose(StartLoss().measure(client), before, rtol=1e-6)
    np.testing.assert_array_equal(client.model.vector(), trained)
    assert not torch.equal(torch.from_numpy(trained), client.origin)


def test_costs_a_pass_over_all_samples() -> None:
    assert StartLoss().samples(30, 8) == 30
