"""A client on which signals can be measured."""

import numpy as np
import pytest
import torch
from torch import nn

from muster.parameters import FlatModel
from muster.randomness import generator
from muster.signals.base import ClientContext
from muster.training.base import LocalTraining


class Classifier(nn.Module):
    """Two layers with dropout and a batch norm between them: everything that tells evaluation from training."""

    final_layer = "head"

    def __init__(self, inputs=6, hidden=5, classes=3):
        super().__init__()
        self.body = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


@pytest.fixture
def make_client():
    def make(size=30, *, model=None, training=None, seed=0, **extra):
        torch.manual_seed(seed)
        flat = FlatModel(model if model is not None else Classifier())
        data = np.random.default_rng(seed)
        return ClientContext(
            client=0,
            features=torch.from_numpy(data.standard_normal((size, 6)).astype(np.float32)),
            labels=torch.from_numpy(data.integers(0, 3, size)),
            classes=3,
            model=flat,
            origin=torch.from_numpy(flat.vector()),
            rng=generator(seed, "client"),
            training=training or LocalTraining(lr=0.1, batch_size=8, epochs=2),
            training_rng=lambda: generator(seed, "training"),
            lr=0.1,
            **extra,
        )

    return make
