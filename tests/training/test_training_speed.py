"""The training loop is as fast as one that somebody writes by hand (marked bench: needs a quiet machine)."""

import statistics
import time

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.parameters import FlatModel
from muster.core.randomness import generator
from muster.models import build_model
from muster.training.base import LocalTraining, Plain, train
from muster.training.context import ClientContext


def by_hand(context):
    module, training, rng = context.model.module, context.training, context.training_rng()
    optimizer = torch.optim.SGD(module.parameters(), lr=training.lr)
    module.train()
    for _ in range(training.epochs):
        order = torch.from_numpy(rng.permutation(context.size))
        for rows in order.split(training.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(context.features[rows]), context.labels[rows]).backward()
            optimizer.step()


@pytest.mark.bench
@pytest.mark.parametrize(
    ("name", "size", "training", "repeats"),
    [
        ("femnist-cnn", 320, LocalTraining(lr=0.01, batch_size=64), 15),
        ("mlp", 50, LocalTraining(lr=0.01, batch_size=10), 300),
    ],
)
def test_speed_against_a_loop_by_hand(name, size, training, repeats):
    model = FlatModel(build_model(name, (1, 28, 28), 10))
    data = np.random.default_rng(0)
    features = torch.from_numpy(data.standard_normal((size, 1, 28, 28)).astype(np.float32))
    context = ClientContext(
        client=0,
        features=features.contiguous(memory_format=model.memory_format),
        labels=torch.from_numpy(data.integers(0, 10, size)),
        classes=10,
        model=model,
        origin=torch.from_numpy(model.vector()),
        rng=generator(0, "train"),
        training=training,
        training_rng=lambda: generator(0, "train"),
        lr=training.lr,
    )

    def ours():
        context.rng = context.training_rng()
        train(context, Plain(), training.lr)

    def seconds(run):
        model.load(context.origin)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds(ours)
        ratios = []
        for repeat in range(repeats):
            first, second = (ours, lambda: by_hand(context)) if repeat % 2 else (lambda: by_hand(context), ours)
            times = seconds(first), seconds(second)
            ratios.append(times[1] / times[0] if repeat % 2 else times[0] / times[1])
    finally:
        torch.set_num_threads(threads)
    speed = statistics.median(ratios)
    print(f"{name}: {speed:.3f} of the speed of the loop by hand")
    assert speed >= 0.97
