"""A convex federation: softmax regression on few samples, with an optimum that can be computed."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from muster.aggregation import Aggregator, Updates
from muster.core.component import Population
from muster.core.parameters import FlatModel
from muster.core.randomness import generator
from muster.training.base import LocalAlgorithm, LocalTraining, train
from muster.training.context import ClientContext

FEATURES, CLASSES, SAMPLES = 3, 3, 12


@dataclass
class Convex:
    """Clients with different labels; weight decay makes the losses strongly convex."""

    clients: int = 3
    training: LocalTraining = field(
        default_factory=lambda: LocalTraining(lr=0.5, steps=8, batch_size=SAMPLES, weight_decay=0.1)
    )

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        self.features = torch.from_numpy(rng.normal(size=(self.clients, SAMPLES, FEATURES)).astype(np.float32))
        shares = [rng.dirichlet(np.full(CLASSES, 0.3)) for _ in range(self.clients)]
        self.labels = torch.tensor(np.array([rng.choice(CLASSES, SAMPLES, p=share) for share in shares]))
        self.model = FlatModel(nn.Linear(FEATURES, CLASSES))
        self.spec = self.model.spec
        self.states: list[dict[str, np.ndarray]] = [{} for _ in range(self.clients)]

    def population(self) -> Population:
        return Population(np.full(self.clients, SAMPLES), CLASSES, self.spec, 100)

    def context(self, client: int, origin: np.ndarray) -> ClientContext:
        start = torch.from_numpy(origin.astype(np.float32))
        self.model.load(start)
        return ClientContext(
            client=client,
            features=self.features[client],
            labels=self.labels[client],
            classes=CLASSES,
            model=self.model,
            origin=start,
            rng=generator(0, "train", client),
            training=self.training,
            training_rng=lambda: generator(0, "train", client),
            lr=self.training.lr,
            state=self.states[client],
        )

    def train(self, client: int, origin: np.ndarray, algorithm: LocalAlgorithm, broadcast=None):
        """One client's training: its job and its movement."""
        context = self.context(client, origin)
        sent = None if broadcast is None else torch.from_numpy(broadcast)
        job = train(context, algorithm, self.training.lr, broadcast=sent)
        return job, self.model.vector() - origin

    def run(self, algorithm: LocalAlgorithm, aggregator: Aggregator, rounds: int) -> np.ndarray:
        aggregator.prepare(self.population())
        current = np.zeros(self.spec.size, dtype=np.float32)
        ones = np.ones(self.clients, dtype=np.int64)
        for _ in range(rounds):
            sent = aggregator.broadcast(self.spec)
            done = [self.train(client, current, algorithm, sent) for client in range(self.clients)]
            extra = {name: np.stack([job.extra[name] for job, _ in done]) for name in algorithm.extra}
            movements = np.stack([movement for _, movement in done])
            updates = Updates.from_movements(movements, sizes=ones, steps=8 * ones, extra=extra)
            current = aggregator.aggregate(current, updates, self.spec).parameters
        return current

    def gradient(self, client: int, at: np.ndarray) -> np.ndarray:
        """Of the client's loss without weight decay."""
        self.model.load(torch.from_numpy(at.astype(np.float32)))
        loss = nn.functional.cross_entropy(self.model.module(self.features[client]), self.labels[client])
        gradients = torch.autograd.grad(loss, list(self.model.module.parameters()))
        return torch.cat([g.flatten() for g in gradients]).numpy()

    def slope(self, at: np.ndarray) -> float:
        """Length of the gradient of the mean of all losses, weight decay included: zero at the optimum."""
        total = sum(self.gradient(client, at) for client in range(self.clients)) / self.clients
        return float(np.linalg.norm(total + self.training.weight_decay * at))


@pytest.fixture
def convex() -> Convex:
    return Convex()
