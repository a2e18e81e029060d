"""Local training: the loop against plain PyTorch and against textbook updates, mini-batches, schedules."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muster.core.errors import ConfigError, DataError, TrainingError
from muster.core.parameters import FlatModel
from muster.core.randomness import generator
from muster.models import build_model
from muster.training.base import LocalAlgorithm, LocalTraining, Plain, Probed, batches, train
from muster.training.context import ClientContext

OPTIMIZERS = {
    "sgd": LocalTraining(lr=0.1, batch_size=8, epochs=2),
    "weight decay": LocalTraining(lr=0.1, weight_decay=0.01, batch_size=8, epochs=2),
    "momentum": LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=8, epochs=2),
    "nesterov": LocalTraining(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, batch_size=8, epochs=2),
    "adam": LocalTraining(optimizer="adam", lr=0.01, weight_decay=0.01, batch_size=8, epochs=2),
    "clipped": LocalTraining(lr=0.1, momentum=0.9, batch_size=8, epochs=2, clip_norm=0.05),
}


def client(training, size=30, model=None, shape=(6,), seed=0):
    data = np.random.default_rng(seed)
    flat = FlatModel(model if model is not None else build_model("mlp", shape, 3, {"hidden": [5]}))
    features = torch.from_numpy(data.standard_normal((size, *shape)).astype(np.float32))
    if features.dim() == 4:
        features = features.contiguous(memory_format=flat.memory_format)
    return ClientContext(
        client=0,
        features=features,
        labels=torch.from_numpy(data.integers(0, 3, size)),
        classes=3,
        model=flat,
        origin=torch.from_numpy(flat.vector()),
        rng=generator(seed, "train"),
        training=training,
        training_rng=lambda: generator(seed, "train"),
        lr=training.lr,
    )


def make_plain_optimizer(training, parameters):
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr, weight_decay=training.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.nesterov,
        fused=True,
    )


def plain_loop(context):
    """What anybody would write in PyTorch; gives the mean loss over all samples."""
    module, training, rng = context.model.module, context.training, context.training_rng()
    optimizer = make_plain_optimizer(training, module.parameters())
    module.train()
    losses = []
    for _ in range(training.epochs):
        order = torch.from_numpy(rng.permutation(context.size))
        for rows in order.split(training.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(context.features[rows]), context.labels[rows])
            loss.backward()
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), training.clip_norm)
            optimizer.step()
            losses += [loss.item()] * len(rows)
    return np.mean(losses)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_plain_loop_bit_for_bit(name):
    training = OPTIMIZERS[name]
    ours, plain = client(training), client(training)
    job = train(ours, Plain(), training.lr)
    mean_loss = plain_loop(plain)
    np.testing.assert_array_equal(ours.model.vector(), plain.model.vector())
    assert not np.array_equal(ours.model.vector(), ours.origin.numpy())
    assert ours.outcome.mean_loss == pytest.approx(mean_loss, rel=1e-12)
    assert (job.steps, ours.outcome.steps, ours.outcome.samples) == (8, 8, 60)
    assert math.isnan(ours.outcome.mean_squared_loss)


@pytest.mark.parametrize("model", ["femnist-cnn", "fmnist-cnn", "group-norm-cnn"])
def test_equals_the_plain_loop_for_convolutions_in_channels_last(model):
    training = LocalTraining(lr=0.05, momentum=0.9, batch_size=4)
    shape = (3, 12, 12)
    ours, plain = (client(training, 10, build_model(model, shape, 3), shape) for _ in range(2))
    assert not ours.features.is_contiguous()
    seen = []
    ours.model.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    train(ours, Plain(), training.lr)
    plain_loop(plain)
    np.testing.assert_array_equal(ours.model.vector(), plain.model.vector())
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in seen)
    if model == "fmnist-cnn":
        assert ours.model.vector()[ours.model.spec.counted].tolist() == [3, 3, 3]


def textbook(training, gradients, start):
    """Sutskever-style momentum as PyTorch defines it, Nesterov's form of it, and Adam (Kingma and Ba, 2015)."""
    w, velocity, second = float(start), 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        g = gradient + training.weight_decay * w
        if training.optimizer == "adam":
            velocity = 0.9 * velocity + 0.1 * g
            second = 0.999 * second + 0.001 * g * g
            w -= training.lr * (velocity / (1 - 0.9**t)) / (math.sqrt(second / (1 - 0.999**t)) + 1e-8)
            continue
        velocity = training.momentum * velocity + g
        w -= training.lr * (g + training.momentum * velocity if training.nesterov else velocity)
    return w


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "clipped"])
def test_optimizers_follow_their_formulas(name):
    training = OPTIMIZERS[name]
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = training.make_optimizer([parameter], training.lr)
    gradients = [0.5, -1.0, 2.0, 0.25]
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient])
        optimizer.step()
    assert parameter.item() == pytest.approx(textbook(training, gradients, 2.0), rel=1e-5)


def test_clipping_bounds_the_first_step():
    training = LocalTraining(lr=1.0, batch_size=30, clip_norm=0.01)
    context = client(training)
    train(context, Plain(), training.lr)
    moved = context.model.vector() - context.origin.numpy()
    assert np.linalg.norm(moved) == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_of_the_call_counts():
    slow, fast = client(OPTIMIZERS["sgd"]), client(OPTIMIZERS["sgd"])
    train(slow, Plain(), 1e-6)
    train(fast, Plain(), 0.1)
    moved = [np.linalg.norm(c.model.vector() - c.origin.numpy()) for c in (slow, fast)]
    assert moved[1] > 1000 * moved[0]


def test_frozen_layers_stay_and_the_rest_trains():
    module = build_model("mlp", (6,), 3, {"hidden": [5]})
    module[1].requires_grad_(False)
    context = client(OPTIMIZERS["momentum"], model=module)
    before = module[1].weight.detach().clone()
    job = train(context, Plain(), 0.1)
    moved = context.model.vector() - context.origin.numpy()
    spec = context.model.spec
    assert torch.equal(context.model.module[1].weight, before)
    assert moved[spec.entry("3.weight").slice].any()
    # What is frozen is not in the flat vector.
    assert [entry.name for entry in spec.entries] == ["3.weight", "3.bias"]
    assert [p.shape for p in job.parameters] == [o.shape for o in job.origin] == [(3, 5), (3,)]


def test_squared_loss_is_of_the_first_epoch_and_does_not_change_training():
    training = OPTIMIZERS["momentum"]
    asked, not_asked = client(training), client(training)
    train(asked, Plain(), 0.1, squared_loss=True)
    train(not_asked, Plain(), 0.1)
    np.testing.assert_array_equal(asked.model.vector(), not_asked.model.vector())
    # With nothing learnt, every loss is that of the first model.
    still = client(LocalTraining(lr=1e-30, batch_size=8, epochs=3))
    train(still, Plain(), 1e-30, squared_loss=True)
    losses = nn.functional.cross_entropy(still.model.module(still.features), still.labels, reduction="none")
    assert still.outcome.mean_squared_loss == pytest.approx(losses.square().mean().item(), rel=1e-6)
    assert still.outcome.mean_loss == pytest.approx(losses.mean().item(), rel=1e-6)


def test_skipping_continues_where_a_probe_stopped():
    training = LocalTraining(lr=0.1, batch_size=8, epochs=2)  # without momentum a restart loses nothing
    whole, resumed = client(training), client(training)
    train(whole, Plain(), 0.1)
    module, optimizer = resumed.model.module, make_plain_optimizer(training, resumed.model.module.parameters())
    for positions in islice(batches(30, training, resumed.training_rng()), 3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(resumed.features[positions]), resumed.labels[positions]).backward()
        optimizer.step()
    job = train(resumed, Plain(), 0.1, probed=Probed(3, 3))
    np.testing.assert_array_equal(whole.model.vector(), resumed.model.vector())
    assert job.steps == 5
    # The origin stays the global model, not the probed one.
    np.testing.assert_array_equal(torch.cat([o.flatten() for o in job.origin]), resumed.origin)


def test_nothing_left_after_the_probe():
    context = client(OPTIMIZERS["sgd"])
    train(context, Plain(), 0.1, probed=Probed(8, 8))
    np.testing.assert_array_equal(context.model.vector(), context.origin.numpy())
    assert (context.outcome.steps, context.outcome.samples) == (0, 0)
    assert math.isnan(context.outcome.mean_loss)


def test_algorithm_hooks_are_called_in_order_and_can_change_the_loss():
    calls = []

    class Hooked(LocalAlgorithm):
        def begin(self, job):
            calls.append("begin")

        def loss(self, job, features, logits, loss):
            calls.append("loss")
            return 0 * loss

        def correct(self, job):
            assert all(p.grad is not None for p in job.parameters)
            calls.append("correct")

        def end(self, job):
            calls.append(job.steps)

    context = client(LocalTraining(lr=0.1, batch_size=30, epochs=2))
    train(context, Hooked(), 0.1)
    assert calls == ["begin", "loss", "correct", "loss", "correct", 2]
    np.testing.assert_array_equal(context.model.vector(), context.origin.numpy())
    assert context.outcome.mean_loss > 0


def test_batch_normalisation_on_a_single_value_is_a_clear_error():
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(TrainingError, match="mini-batch of one sample"):
        train(client(LocalTraining(batch_size=8), size=9, model=module), Plain(), 0.1)


def test_other_errors_of_a_model_pass_through():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            raise ValueError("my own mistake")

    with pytest.raises(ValueError, match="my own mistake"):
        train(client(LocalTraining(), model=Broken()), Plain(), 0.1)


def test_batches_of_one_epoch_cover_every_sample_once_in_random_order():
    rows = list(batches(23, LocalTraining(batch_size=5), np.random.default_rng(0)))
    assert [len(r) for r in rows] == [5, 5, 5, 5, 3]
    flat = np.concatenate(rows)
    assert sorted(flat) == list(range(23))
    assert list(flat) != list(range(23))


def test_batches_stop_after_the_steps_asked_for():
    rows = list(batches(23, LocalTraining(batch_size=5, steps=7), np.random.default_rng(0)))
    assert [len(r) for r in rows] == [5, 5, 5, 5, 3, 5, 5]
    assert len(set(np.concatenate(rows[5:]))) == 10


def test_a_client_without_samples_is_refused_instead_of_looping():
    with pytest.raises(DataError, match="without samples"):
        next(batches(0, LocalTraining(steps=3), np.random.default_rng(0)))


amounts = st.builds(
    LocalTraining,
    epochs=st.integers(1, 3),
    steps=st.one_of(st.none(), st.integers(1, 12)),
    batch_size=st.integers(1, 12),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), amounts, st.integers(0, 5))
def test_counts_agree_with_the_loop(size, training, seed):
    rows = list(batches(size, training, np.random.default_rng(seed)))
    assert len(rows) == training.steps_for(size)
    assert sum(map(len, rows)) == training.samples_for(size)
    for start in range(0, training.samples_for(size), size):
        epoch = np.concatenate(rows)[start : start + size]
        assert len(set(epoch)) == len(epoch)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), amounts, st.integers(0, 40))
def test_skipped_batches_and_the_rest_are_the_whole(size, training, skip):
    whole = list(batches(size, training, np.random.default_rng(1)))
    rest = list(batches(size, training, np.random.default_rng(1), skip))
    assert len(rest) == max(0, len(whole) - skip)
    for mine, theirs in zip(rest, whole[skip:], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("schedule", "options", "expected"),
    [
        ("constant", {}, [1, 1, 1, 1, 1]),
        ("step", {"decay_every": 2, "decay": 0.5}, [1, 1, 0.5, 0.5, 0.25]),
        ("exponential", {"decay": 0.9}, [1, 0.9, 0.81, 0.729, 0.6561]),
        ("cosine", {}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        (
            "cosine",
            {"final_share": 0.5},
            [1, 0.5 + (1 + math.sqrt(0.5)) / 4, 0.75, 0.75 - math.sqrt(0.5) / 4, 0.5],
        ),
        ("linear", {"final_share": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
    ],
)
def test_schedules(schedule, options, expected):
    training = LocalTraining(lr=2.0, schedule=schedule, **options)
    rates = [training.learning_rate(round, 5) for round in range(5)]
    np.testing.assert_allclose(rates, 2 * np.array(expected, dtype=float), atol=1e-12)


def test_schedules_of_a_single_round_and_beyond_the_last():
    for schedule in ("constant", "step", "exponential", "cosine", "linear"):
        assert LocalTraining(lr=0.3, schedule=schedule).learning_rate(0, 1) == 0.3
    assert LocalTraining(lr=1.0, schedule="linear", final_share=0.1).learning_rate(9, 5) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": math.inf},
        {"lr": math.nan},
        {"epochs": 0},
        {"steps": 0},
        {"batch_size": 0},
        {"clip_norm": 0.0},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": math.nan},
        {"weight_decay": -1.0},
        {"weight_decay": math.inf},
        {"decay": 0.0},
        {"decay_every": 0},
        {"final_share": 1.5},
        {"nesterov": True},
        {"optimizer": "adam", "momentum": 0.9},
    ],
)
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="training"):
        LocalTraining(**options).check()


def test_sensible_values_pass():
    for training in OPTIMIZERS.values():
        training.check()
