"""The probe norm."""

import copy

import numpy as np
import pytest
import torch

from muster.config.experiment import from_dict
from muster.core.errors import ConfigError
from muster.experiment.runner import run
from muster.signals.probe import ProbeNorm
from muster.training.base import LocalTraining, Plain, Probed, batches, train
from muster.training.context import PROBE, PROBE_VELOCITY


@pytest.fixture
def tiny_experiment():
    """Runs a round on a few digits."""

    def start(**sections):
        data = {"source": "digits"}
        partition = {"scheme": "iid", "clients": 10}
        model = {"name": "mlp", "hidden": [8]}
        common = {"rounds": 1, "data": data, "partition": partition, "model": model}
        return run(from_dict(common | sections), workers=0)

    return start


def test_a_probe_is_the_beginning_of_the_training(make_client):
    """Two batches as a probe, then the rest: the same model as training at once (no momentum, no dropout)."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    probed = make_client(model=model)
    norm = ProbeNorm(batches=2).measure(probed)
    start, work = probed.state[PROBE][:-2], Probed(*probed.state[PROBE][-2:].astype(int).tolist())
    assert work == Probed(steps=2, skip=2)
    assert norm == pytest.approx(np.linalg.norm(start - probed.origin.numpy()), rel=1e-5)
    probed.model.load(torch.from_numpy(start))
    probed.rng = probed.training_rng()
    train(probed, Plain(), 0.1, probed=work)
    resumed = probed.model.vector()
    straight = make_client(model=model)
    straight.model.load(probed.origin)
    straight.rng = straight.training_rng()
    train(straight, Plain(), 0.1)
    np.testing.assert_allclose(resumed, straight.model.vector(), atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_momentum_is_kept_or_not_as_stated(make_client, nesterov, steps):
    """Kept: as if the client had trained on the same mini-batches at once. Fresh: it starts from rest again."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    training = LocalTraining(lr=0.1, batch_size=8, epochs=2, momentum=0.9, nesterov=nesterov, weight_decay=0.01)

    def trained(state):
        client = make_client(model=copy.deepcopy(model), training=training)
        ProbeNorm(batches=2, steps=steps, optimizer_state=state).measure(client)
        probe, velocity = client.state[PROBE], client.state.get(PROBE_VELOCITY)
        assert (velocity is None) == (state == "fresh")
        client.model.load(torch.from_numpy(probe[:-2]))
        client.rng = client.training_rng()
        work = Probed(int(probe[-2]), int(probe[-1]), None if velocity is None else torch.from_numpy(velocity))
        train(client, Plain(), 0.1, probed=work)
        return client.model.vector()

    def at_once(restart):
        client = make_client(model=copy.deepcopy(model), training=training)
        every = list(batches(client.size, training, client.training_rng()))
        module, parameters = client.model.module, list(client.model.module.parameters())
        optimizer = torch.optim.SGD(parameters, 0.1, 0.9, weight_decay=0.01, nesterov=nesterov)
        client.model.load(client.origin)
        for number, positions in enumerate(steps * every[:2] + every[2 * steps :]):
            if restart and number == 2 * steps:
                optimizer = torch.optim.SGD(parameters, 0.1, 0.9, weight_decay=0.01, nesterov=nesterov)
            optimizer.zero_grad()
            logits = module(client.features[positions])
            torch.nn.functional.cross_entropy(logits, client.labels[positions]).backward()
            optimizer.step()
        return client.model.vector()

    np.testing.assert_allclose(trained("kept"), at_once(restart=False), atol=1e-6)
    np.testing.assert_allclose(trained("fresh"), at_once(restart=True), atol=1e-6)
    assert np.abs(trained("kept") - trained("fresh")).max() > 0.01


def test_a_probe_can_leave_momentum_only_where_there_is_some(tiny_experiment):
    kept = {"method": "probe-fairness", "clients_per_round": 3, "optimizer_state": "kept"}
    for training in ({"momentum": 0.0}, {"optimizer": "adam"}):
        with pytest.raises(ConfigError, match="has none"):
            tiny_experiment(selection=kept, training=training)
    with pytest.raises(ConfigError, match="last training"):
        tiny_experiment(selection=kept, training={"momentum": 0.9}, algorithm={"method": "continued"})


def test_the_global_model_is_loaded_again(make_client):
    client = make_client()
    ProbeNorm().measure(client)
    np.testing.assert_array_equal(client.model.vector(), client.origin.numpy())


def test_running_statistics_and_counters_do_not_count_as_distance(make_client):
    client = make_client()
    norm = ProbeNorm().measure(client)
    moved = client.state[PROBE][:-2] - client.origin.numpy()
    assert np.linalg.norm(moved) > 2  # the batch norm's counter alone has moved by 2
    assert norm == pytest.approx(np.linalg.norm(moved[client.spec.trainable]), rel=1e-5)
    assert norm < 0.9 * np.linalg.norm(moved[client.spec.averaged])  # so have its running statistics


@pytest.mark.parametrize(
    ("signal", "size", "work", "spared"),
    [
        (ProbeNorm(batches=2), 30, [2, 2], 16),
        (ProbeNorm(batches=2, steps=3), 30, [6, 6], 30 + 16),
        (ProbeNorm(batches=2, steps=9), 30, [8, 8], 60),  # never more than the training: 2 epochs of 4 batches
        (ProbeNorm(batches=2, credit="epoch"), 30, [2, 4], 30),
        (ProbeNorm(batches=5), 10, [2, 2], 10),  # a probe is at most one epoch
    ],
)
def test_steps_and_credit(make_client, signal, size, work, spared):
    client = make_client(size=size)
    signal.measure(client)
    assert client.state[PROBE][-2:].tolist() == work
    assert signal.spares(size, client.training) == spared


def test_a_training_of_few_steps_bounds_the_probe(make_client):
    client = make_client(training=LocalTraining(lr=0.1, batch_size=8, steps=1))
    ProbeNorm(batches=3).measure(client)
    assert client.state[PROBE][-1] == 1


def test_cost():
    assert ProbeNorm().samples(100, 8) == 16
    assert ProbeNorm(steps=2).samples(10, 8) == 20
