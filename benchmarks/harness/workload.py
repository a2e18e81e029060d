"""The workload that every side trains on: the same network, pictures, cohort size, batch size and epochs.

Needs nothing but NumPy and PyTorch, so that every environment can import it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

SIDE = 28
CLASSES = 10
#: Pixels in 0 … 255 are seen by the network as (x / 255 − MEAN) / STD.
MEAN, STD = 0.5, 0.25


@dataclass(frozen=True)
class Workload:
    """Sizes of a run. The defaults are those of the FEMNIST network's speed target."""

    clients: int = 50
    #: Training samples of every client.
    samples: int = 1200
    #: Clients a round.
    cohort: int = 6
    batch: int = 64
    lr: float = 0.01
    #: Rounds that are timed; one more goes before them to warm up.
    rounds: int = 4
    workers: int = 2
    #: Mini-batches a client instead of one epoch; None: one epoch.
    steps: int | None = None
    aggregation: str = "fedavg"
    seed: int = 0

    @property
    def timed_samples(self) -> int:
        """Samples that an honest side trains on while the clock runs."""
        return self.rounds * self.cohort * self.samples

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        values: dict[str, Any] = json.loads(text)
        return cls(**{f.name: values[f.name] for f in fields(cls)})


def pictures(workload: Workload) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pictures (clients · samples × 1 × 28 × 28) and labels, client by client: a pattern a class, and noise."""
    rng = np.random.default_rng(workload.seed)
    count = workload.clients * workload.samples
    patterns = rng.integers(0, 128, size=(CLASSES, 1, SIDE, SIDE), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, size=count)
    noise = rng.integers(0, 128, size=(count, 1, SIDE, SIDE), dtype=np.uint8)
    return patterns[labels] + noise, labels


def client_tensors(workload: Workload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every client's features and labels as tensors in RAM, ready for the network."""
    features, labels = pictures(workload)
    size = workload.samples
    parts = [slice(start, start + size) for start in range(0, len(labels), size)]
    return [
        ((torch.from_numpy(features[part]).float() / 255 - MEAN) / STD, torch.from_numpy(labels[part]))
        for part in parts
    ]


def network(pool_first: bool = True) -> nn.Module:
    """conv 5×5×32, pool, conv 5×5×64, pool, 512, 10: written here once more for those who do not have Muster.

    Pooling before ReLU is the same function for less work; textbooks write ReLU first.
    """
    pooled = (nn.MaxPool2d(2), nn.ReLU()) if pool_first else (nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        *pooled,
        nn.Conv2d(32, 64, 5, padding=2),
        *pooled,
        nn.Flatten(),
        nn.Linear(64 * (SIDE // 4) ** 2, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def train_plainly(model: nn.Module, features: torch.Tensor, labels: torch.Tensor, workload: Workload) -> int:
    """One epoch of the loop that everybody writes; the number of samples that it went through."""
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr, fused=True)
    order, seen = torch.randperm(len(labels)), 0
    model.train()
    for start in range(0, len(labels), workload.batch):
        positions = order[start : start + workload.batch]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features[positions]), labels[positions])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen += len(positions)
    return seen


def train_from_loader(model: nn.Module, features: torch.Tensor, labels: torch.Tensor, workload: Workload) -> int:
    """One epoch as examples and tutorials write it: a DataLoader that shuffles, the optimiser as it comes."""
    dataset = torch.utils.data.TensorDataset(features, labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=workload.batch, shuffle=True)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=workload.lr), 0
    model.train()
    for batch, truth in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), truth)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen += len(truth)
    return seen
