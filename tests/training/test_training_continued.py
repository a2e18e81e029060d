"""The continued optimiser: several trainings are one long one; what is kept, and what is not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.parameters import FlatModel
from muster.core.randomness import generator
from muster.models import build_model
from muster.training.base import LocalTraining, Plain, train
from muster.training.context import ClientContext
from muster.training.continued import FIRST, SECOND, Continued

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam", "lr": 0.01},
}


class Norm(nn.Module):
    """Convolutions in channels_last, buffers, counters, and a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)


def make(model, training, state, size=30):
    data = np.random.default_rng(0)
    flat = FlatModel(model)
    shape = (2, 4, 4) if flat.memory_format is torch.channels_last else (6,)
    features = torch.from_numpy(data.standard_normal((size, *shape)).astype(np.float32))
    return ClientContext(
        client=0,
        features=features,
        labels=torch.from_numpy(data.integers(0, 3, size)),
        classes=3,
        model=flat,
        origin=torch.from_numpy(flat.vector()),
        rng=generator(0, "train"),
        training=training,
        training_rng=lambda: generator(0, "train"),
        lr=training.lr,
        state=state,
    )


def model_for(kind):
    torch.manual_seed(0)
    return Norm() if kind == "convolutions" else build_model("mlp", (6,), 3, {"hidden": [5]})


@pytest.mark.parametrize("kind", ["dense", "convolutions"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_trainings_are_one_of_three_epochs_bit_for_bit(name, kind):
    whole = make(model_for(kind), LocalTraining(batch_size=8, epochs=3, **OPTIMIZERS[name]), {})
    train(whole, Plain(), whole.training.lr)
    one = LocalTraining(batch_size=8, **OPTIMIZERS[name])
    parts = make(model_for(kind), one, {})
    restarted = make(model_for(kind), one, {})
    for _ in range(3):
        train(parts, Continued(), one.lr)
        train(restarted, Plain(), one.lr)
    np.testing.assert_array_equal(parts.model.vector(), whole.model.vector())
    assert not np.array_equal(restarted.model.vector(), whole.model.vector())


def test_plain_sgd_has_nothing_to_keep():
    context = make(model_for("dense"), LocalTraining(lr=0.1, batch_size=8), {})
    train(context, Continued(), 0.1)
    assert context.state == {}


def test_adam_keeps_two_vectors_and_the_number_of_steps():
    context = make(model_for("dense"), LocalTraining(optimizer="adam", lr=0.01, batch_size=8), {})
    train(context, Continued(), 0.01)
    assert set(context.state) == {FIRST, SECOND}
    assert all(len(vector) == context.spec.size + 1 for vector in context.state.values())
    assert context.state[SECOND][-1] == 4
    train(context, Continued(), 0.01)
    assert context.state[SECOND][-1] == 8


def test_a_training_that_diverged_is_forgotten():
    context = make(model_for("dense"), LocalTraining(lr=0.1, momentum=0.9, batch_size=8), {})
    train(context, Continued(), 0.1)
    before = context.state[FIRST].copy()
    train(context, Continued(), 1e30)
    assert not np.isfinite(context.model.vector()).all()
    np.testing.assert_array_equal(context.state[FIRST], before)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_with_mu_two_trainings_are_those_of_an_optimiser_that_nobody_restarts(name):
    """PyTorch's own optimiser, made once, on the loss with the proximal term written out."""
    options, mu, size = OPTIMIZERS[name], 0.3, 8  # one batch is all the data: no order to follow
    training = LocalTraining(batch_size=size, epochs=3, **options)
    context = make(model_for("dense"), training, {}, size=size)
    slow = model_for("dense")
    kinds = {"momentum": torch.optim.SGD, "adam": torch.optim.Adam}
    optimizer = kinds[name](slow.parameters(), **{k: v for k, v in options.items() if k != "optimizer"})
    for _ in range(2):
        context.origin = torch.from_numpy(context.model.vector())
        train(context, Continued(mu=mu), training.lr)
        start = [parameter.detach().clone() for parameter in slow.parameters()]
        for _ in range(3):
            optimizer.zero_grad()
            moved = sum((p - q).square().sum() for p, q in zip(slow.parameters(), start, strict=True))
            loss = nn.functional.cross_entropy(slow(context.features), context.labels) + mu / 2 * moved
            loss.backward()
            optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in slow.parameters()])
    np.testing.assert_allclose(context.model.vector(), expected.numpy(), rtol=2e-5, atol=1e-6)


def test_without_mu_there_is_no_pull():
    assert Continued().pull == 0
    assert Continued(mu=0.1).pull == 0.1
