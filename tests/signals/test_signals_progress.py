"""How much local work is in an update."""

import numpy as np
import pytest
import torch

from muster.core.errors import ConfigError
from muster.signals.progress import LocalProgress
from muster.training.base import LocalTraining, Plain, Probed, train
from muster.training.fedprox import FedProx


@pytest.mark.parametrize(
    ("training", "algorithm", "expected"),
    [
        (LocalTraining(lr=0.1, batch_size=8, epochs=2), Plain(), 8),
        (LocalTraining(lr=0.1, batch_size=8, steps=2, momentum=0.9), Plain(), 2.9),
        (LocalTraining(lr=0.1, batch_size=8, steps=5), FedProx(mu=0.1), 4.900995),
        (LocalTraining(lr=0.1, batch_size=8, steps=5, weight_decay=0.1), Plain(), 4.900995),
        (LocalTraining(lr=0.1, batch_size=8, steps=10, momentum=0.9), FedProx(mu=0.1), 37.892089),
        (LocalTraining(lr=0.1, batch_size=8, steps=5, optimizer="adam"), Plain(), np.nan),
    ],
)
def test_counts_steps_as_their_gradients_enter_the_movement(make_client, training, algorithm, expected) -> None:
    client = make_client(training=training)
    train(client, algorithm, 0.1)
    np.testing.assert_allclose(LocalProgress().measure(client), [expected], atol=1e-6)


def test_steps_of_a_probe_count(make_client) -> None:
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=6))
    train(client, Plain(), 0.1, probed=Probed(2, 2))
    assert client.outcome.steps == 4
    assert LocalProgress().measure(client)[0] == 6


def test_the_velocity_of_a_probe_does_not_reach_the_training(make_client) -> None:
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=4, momentum=0.9))
    train(client, Plain(), 0.1, probed=Probed(2, 2))
    assert LocalProgress().measure(client)[0] == pytest.approx(2.9 + 2.9)


def test_the_velocity_of_a_probe_reaches_the_training_where_it_is_kept(make_client) -> None:
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=4, momentum=0.9))
    train(client, Plain(), 0.1, probed=Probed(2, 2, torch.zeros(client.spec.size)))
    assert LocalProgress().measure(client)[0] == pytest.approx(1 + 1.9 + 2.71 + 3.439)


def test_steps_that_a_probe_is_credited_with_but_did_not_take_do_not_count(make_client) -> None:
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=6))
    train(client, Plain(), 0.1, probed=Probed(steps=2, skip=4))
    assert client.outcome.steps == 2
    assert LocalProgress().measure(client)[0] == 4


def test_exists_only_after_training(make_client) -> None:
    with pytest.raises(ConfigError, match="only after training"):
        LocalProgress().measure(make_client())
