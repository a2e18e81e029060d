"""The workloads that every side trains on: the same network, data, cohort size, batch size and epochs.

Needs nothing but NumPy and PyTorch, so that every environment can import it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

#: Values in 0 … 255 are seen by the network as (x / 255 − MEAN) / STD.
MEAN, STD = 0.5, 0.25
#: Characters that a window of text is made of.
VOCABULARY = 90
SHAPES: dict[str, tuple[int, ...]] = {
    "femnist-cnn": (1, 28, 28),
    "cifar-cnn": (3, 32, 32),
    "mlp": (1, 28, 28),
    "logistic": (60,),
    "char-lstm": (80,),
}


@dataclass(frozen=True)
class Workload:
    """A network and the sizes of a run."""

    network: str = "femnist-cnn"
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
    def shape(self) -> tuple[int, ...]:
        return SHAPES[self.network]

    @property
    def tokens(self) -> bool:
        return self.network == "char-lstm"

    @property
    def classes(self) -> int:
        return VOCABULARY if self.tokens else 10

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


def arrays(workload: Workload) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Features (clients · samples × shape, bytes) and labels, client by client: a pattern a class, and noise."""
    rng = np.random.default_rng(workload.seed)
    count = workload.clients * workload.samples
    if workload.tokens:
        text = rng.integers(0, VOCABULARY, size=(count, *workload.shape), dtype=np.uint8)
        return text, text[:, 0].astype(np.int64)
    patterns = rng.integers(0, 128, size=(workload.classes, *workload.shape), dtype=np.uint8)
    labels = rng.integers(0, workload.classes, size=count)
    noise = rng.integers(0, 128, size=(count, *workload.shape), dtype=np.uint8)
    return patterns[labels] + noise, labels


class ClientTensors:
    """Every client's features and labels as tensors in RAM, ready for the network."""

    def __init__(self, workload: Workload, memory_format: torch.memory_format = torch.contiguous_format) -> None:
        features, labels = arrays(workload)
        self.size, self.clients = workload.samples, workload.clients
        self.labels = torch.from_numpy(labels)
        if workload.tokens:
            self.features = torch.from_numpy(features).long()
        else:
            self.features = torch.from_numpy(features).float().div_(255).sub_(MEAN).div_(STD)
        if self.features.dim() == 4:
            self.features = self.features.contiguous(memory_format=memory_format)

    def __getitem__(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = slice(client * self.size, (client + 1) * self.size)
        return self.features[part], self.labels[part]


class CharLSTM(nn.Module):
    """Embedding, one LSTM over the window, a dense layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)
        self.fc = nn.Linear(128, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.fc(states[:, -1])
        return logits


def network(workload: Workload, pool_first: bool = True) -> nn.Module:
    """The workload's network.

    Pooling before ReLU is the same function for less work; textbooks write ReLU first.
    """
    pooled = (nn.MaxPool2d(2), nn.ReLU()) if pool_first else (nn.ReLU(), nn.MaxPool2d(2))
    match workload.network:
        case "femnist-cnn":
            return nn.Sequential(
                nn.Conv2d(1, 32, 5, padding=2),
                *pooled,
                nn.Conv2d(32, 64, 5, padding=2),
                *pooled,
                nn.Flatten(),
                nn.Linear(64 * 7 * 7, 512),
                nn.ReLU(),
                nn.Linear(512, 10),
            )
        case "cifar-cnn":
            return nn.Sequential(
                nn.Conv2d(3, 32, 3),
                nn.ReLU(),
                nn.Conv2d(32, 64, 3),
                *pooled,
                nn.Flatten(),
                nn.Linear(64 * 14 * 14, 128),
                nn.ReLU(),
                nn.Linear(128, 10),
            )
        case "mlp":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        case "logistic":
            return nn.Sequential(nn.Linear(60, 10))
        case "char-lstm":
            return CharLSTM()
    raise ValueError(workload.network)


def operations(workload: Workload) -> float:
    """Floating-point operations of a training step, for each sample; recurrent layers are not counted."""
    model, data = network(workload), ClientTensors(replace(workload, clients=1, samples=workload.batch))
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(model(data[0][0]), data[0][1]).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops()) / workload.batch


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
