"""The probe norm."""

import numpy as np
import pytest
import torch

from muster.signals.base import PROBE
from muster.signals.probe import ProbeNorm
from muster.training.base import LocalTraining, Plain, train


def test_a_probe_is_the_beginning_of_the_training(make_client):
    """Two batches as a probe, then the rest: the same model as training at once (no momentum, no dropout)."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    probed = make_client(model=model)
    norm = ProbeNorm(batches=2).measure(probed)
    start, skip = probed.state[PROBE][:-1], int(probed.state[PROBE][-1])
    assert skip == 2
    assert norm == pytest.approx(np.linalg.norm(start - probed.origin.numpy()), rel=1e-5)
    probed.model.load(torch.from_numpy(start))
    probed.rng = probed.training_rng()
    train(probed, Plain(), 0.1, skip=skip)
    resumed = probed.model.vector()
    straight = make_client(model=model)
    straight.model.load(probed.origin)
    straight.rng = straight.training_rng()
    train(straight, Plain(), 0.1)
    np.testing.assert_allclose(resumed, straight.model.vector(), atol=1e-6)


def test_the_global_model_is_loaded_again(make_client):
    client = make_client()
    ProbeNorm().measure(client)
    np.testing.assert_array_equal(client.model.vector(), client.origin.numpy())


def test_running_statistics_and_counters_do_not_count_as_distance(make_client):
    client = make_client()
    norm = ProbeNorm().measure(client)
    moved = client.state[PROBE][:-1] - client.origin.numpy()
    assert np.linalg.norm(moved) > 2  # the batch norm's counter alone has moved by 2
    assert norm == pytest.approx(np.linalg.norm(moved[client.spec.trainable]), rel=1e-5)
    assert norm < 0.9 * np.linalg.norm(moved[client.spec.averaged])  # so have its running statistics


@pytest.mark.parametrize(
    ("signal", "size", "skip"),
    [
        (ProbeNorm(batches=2), 30, 2),
        (ProbeNorm(batches=2, steps=3), 30, 6),
        (ProbeNorm(batches=2, steps=9), 30, 8),  # never more than the training has: 2 epochs of 4 batches
        (ProbeNorm(batches=2, credit="epoch"), 30, 4),
        (ProbeNorm(batches=5), 10, 2),  # a probe is at most one epoch
    ],
)
def test_credit(make_client, signal, size, skip):
    client = make_client(size=size)
    signal.measure(client)
    assert client.state[PROBE][-1] == skip


def test_a_training_of_few_steps_bounds_the_probe(make_client):
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=1))
    ProbeNorm(batches=3).measure(client)
    assert client.state[PROBE][-1] == 1


def test_cost():
    assert ProbeNorm().samples(100, 8) == 16
    assert ProbeNorm(steps=2).samples(10, 8) == 20
