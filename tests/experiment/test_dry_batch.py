"""One batch before round 1: mistakes in model, loss and metrics are named, and nothing has trained."""

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.errors import ConfigError
from muster.data import FederatedData, Index, from_arrays
from muster.experiment import build_parts
from muster.experiment.dry_batch import single_leftovers
from muster.training.base import LocalTraining, batches

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(80, 6)).astype(np.float32), np.arange(80) % 3


class TwoOutputs(nn.Module):
    """Gives what enters the last layer, too."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x), x


class NoInit(nn.Module):
    """Forgets to call the constructor of nn.Module."""

    def __init__(self):
        self.fc = nn.Linear(6, 3)


class Flattens(nn.Module):
    """Mixes the samples of a batch up."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x).reshape(-1)


class Detached(nn.Module):
    """Cuts its outputs off from its parameters."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x).detach()


class Bug(nn.Module):
    """Has a mistake of its own."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x) + {}["missing"]


class Explodes(nn.Module):
    """Divides by nothing."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(x) / 0.0 * 0.0


def experiment(**changes):
    sections = {
        "rounds": 1,
        "data": from_arrays(FEATURES, LABELS, clients=np.arange(80) % 8),
        "selection": {"method": "random", "clients_per_round": 4},
        "engine": "inline",
    }
    return muster.Experiment(**(sections | changes))


MISTAKES = {
    "wrong width": ({"model": nn.Linear(5, 3)}, r"fails on 4 samples of shape \(6,\).*mat1 and mat2"),
    "wrong width inside": (
        {"model": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(4, 3))},
        r"in its layer '2', Linear\(in_features=4.*see that every layer fits",
    ),
    "outputs": ({"model": nn.Linear(6, 4)}, "has 4 outputs"),
    "detached": ({"model": Detached}, r"outputs of the model Detached do not depend.*detach\(\)"),
    "lazy": ({"model": nn.LazyLinear(3)}, "its shape is not known yet"),
    "half of a float": ({"model": nn.Linear(6, 3).bfloat16()}, r"bfloat16.*float32.*model\.float\(\)"),
    "lazy inside a function": ({"model": lambda: nn.LazyLinear(3)}, "its shape is not known yet"),
    "tuple": ({"model": TwoOutputs}, "gives a tuple.*return only the outputs"),
    "no constructor": ({"model": NoInit}, r"NoInit cannot be made.*super\(\)\.__init__\(\) first"),
    "batch axis": ({"model": Flattens}, r"shape \(12,\) for 4 samples"),
    "bug": ({"model": Bug}, r"KeyError.*test_dry_batch\.py:\d+ \(forward\)"),
    "pictures wanted": (
        {"model": nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(6, 3))},
        "fails on 4 samples",
    ),
    "not finite": ({"model": Explodes}, "is nan"),
    "loss of other arguments": ({"objective": lambda y: y}, "the loss <lambda> fails: TypeError"),
    "loss as one number": ({"objective": lambda y, t: y.mean()}, "one number per sample"),
    "loss without gradient": (
        {"objective": lambda y, t: (y.argmax(1) == t).float()},
        "does not depend on the model",
    ),
    "loss of the wrong kind": ({"objective": nn.BCEWithLogitsLoss()}, "BCEWithLogitsLoss fails.*targets of shape"),
    "metric": ({"objective": {"metrics": {"bad": lambda y, t: y @ t}}}, "a metric fails"),
    "metric as one number": ({"objective": {"metrics": {"bad": lambda y, t: y.mean()}}}, "the metric 'bad'"),
    "objective of another task": ({"objective": {"method": "regression"}}, "is for regression"),
    "unknown objective": ({"objective": {"method": "clasification"}}, "did you mean 'classification'"),
    "unknown option": ({"objective": {"los": "a:b"}}, r"unknown key 'objective\.los'"),
    "objective is a number": ({"objective": 3}, "bad value for 'objective'"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistakes_are_named_before_round_one(mistake):
    changes, message = MISTAKES[mistake]
    began = []

    class Watch(muster.server.loop.Observer):
        def started(self, server, rounds, done):
            began.append(server)

    with pytest.raises(ConfigError, match=rf"(?s){message}"):
        muster.run(experiment(**changes), observers=[Watch()])
    assert not began


def test_gradients_that_the_caller_has_switched_off_are_no_mistake_of_the_model():
    with torch.no_grad(), build_parts(experiment(), workers=0).engine as engine:
        assert engine.population.clients


def test_the_batch_changes_neither_model_nor_randomness():
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    muster.experiment.build_parts(experiment(model=network), workers=0)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert network[1].num_batches_tracked == 0


# --- mini-batches of one sample ----------------------------------------------------------------------


def of_sizes(*sizes):
    dataset = from_arrays(FEATURES, LABELS)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedData(dataset, Index(starts, np.arange(starts[-1])))


def normalised(inputs=6):
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("engine", ["inline", "vectorised"])
def test_single_leftovers_are_told_and_dropped_on_request(engine):
    training = {"batch_size": 8, "lr": 0.1, "epochs": 2}
    described = experiment(
        data=of_sizes(17, 16, 9),
        model=normalised(),
        training=training,
        engine=engine,
        selection={"method": "random", "clients_per_round": 3},
    )
    with pytest.raises(ConfigError, match=r"(?s)2 of 3 clients would have \(client 0, 2\).*drop_last = true"):
        muster.run(described, workers=0)
    described.training = training | {"drop_last": True}
    result = muster.run(described, workers=0)
    assert result.ledger.total().samples == 2 * (16 + 16 + 8)
    assert result.ledger.total().local_steps == 2 * (2 + 2 + 1)


def test_a_client_with_one_sample_needs_another_normalisation():
    described = experiment(data=of_sizes(9, 1), model=normalised(), training={"batch_size": 8, "drop_last": True})
    with pytest.raises(ConfigError, match=r"(?s)1 of 2 clients.*\(client 1\).*leave out clients with one sample"):
        muster.run(described, workers=0)


def test_pictures_may_be_alone_in_a_batch():
    # One sample has many pixels a channel: batch normalisation can have it.
    pictures = RNG.normal(size=(60, 1, 4, 4)).astype(np.float32)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    data = from_arrays(pictures, LABELS[:60], clients=np.arange(60) % 4)
    assert (data.sizes % 11 == 1).all()
    result = muster.run(experiment(data=data, model=network, training={"batch_size": 11}))
    assert result.complete


def test_both_engines_take_the_same_batches_with_drop_last():
    training = {"batch_size": 8, "lr": 0.1, "epochs": 3, "drop_last": True, "momentum": 0.9}
    results = [
        muster.run(
            experiment(
                data=of_sizes(17, 16, 9, 5),
                model={"name": "mlp", "hidden": [8]},
                training=training,
                engine=engine,
                selection={"method": "random", "clients_per_round": 4},
            ),
            workers=0,
        )
        for engine in ("inline", "vectorised")
    ]
    np.testing.assert_allclose(results[0].parameters, results[1].parameters, atol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 8, 9, 16, 17, 30])
@pytest.mark.parametrize("work", [{"epochs": 2}, {"steps": 1}, {"steps": 5}])
@pytest.mark.parametrize("drop_last", [True, False])
def test_what_a_training_says_is_what_it_does(size, work, drop_last):
    training = LocalTraining(batch_size=8, drop_last=drop_last, **work)
    made = list(batches(size, training, np.random.default_rng(0)))
    assert len(made) == training.steps_for(size)
    assert sum(map(len, made)) == training.samples_for(size)
    assert all(len(batch) == min(size, 8) for batch in made) or not drop_last
    assert (0 in single_leftovers(np.array([size]), training)) == any(len(batch) == 1 for batch in made)
