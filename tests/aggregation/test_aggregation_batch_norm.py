"""Distances, norms and cosines are of trainable parameters: running statistics are reduced, never measured.

A network with batch normalisation, really trained by clients whose inputs differ in scale. Its running statistics
move hundreds of times as far as its weights.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from muster.aggregation import Updates
from muster.aggregation.geometric_median import GeometricMedian
from muster.aggregation.krum import Krum, MultiKrum
from muster.aggregation.simprox import SimProx, weights
from muster.core.parameters import FlatModel, ParameterSpec
from muster.updates.guard import Guard

CLIENTS, STEPS = 7, 5
#: Trains with a larger learning rate, on inputs of ordinary scale: its weights move most, its statistics least.
EAGER = 2


@dataclass
class Trained:
    spec: ParameterSpec
    current: np.ndarray
    movements: np.ndarray

    @property
    def updates(self) -> Updates:
        ones = np.ones(len(self.movements), dtype=np.int64)
        return Updates.from_movements(self.movements, sizes=ones)

    @property
    def trainable(self) -> np.ndarray:
        return self.movements[:, self.spec.trainable].astype(np.float64)

    @property
    def statistics(self) -> np.ndarray:
        return self.movements[:, self.spec.trainable.stop : self.spec.averaged.stop].astype(np.float64)


@pytest.fixture(scope="module")
def trained() -> Trained:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FlatModel(
            nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).train()
        )
        origin = torch.from_numpy(model.vector())
        teacher = torch.randn(12, 4)
        movements = torch.empty(CLIENTS, model.spec.size)
        for client in range(CLIENTS):
            model.load(origin)
            scale = 1.0 if client == EAGER else 8.0 + 3.0 * client
            optimizer = torch.optim.SGD(model.module.parameters(), lr=0.5 if client == EAGER else 0.05)
            for _ in range(STEPS):
                features = torch.randn(32, 12)
                optimizer.zero_grad()
                logits = model.module(scale * features)
                nn.functional.cross_entropy(logits, (features @ teacher).argmax(dim=1)).backward()
                optimizer.step()
            model.store_movement(origin, movements[client])
    return Trained(model.spec, origin.numpy(), movements.numpy())


@pytest.fixture
def attacked(trained) -> Trained:
    """The last client sends −4 times the others' mean in its weights, and statistics like everybody else's."""
    movements = trained.movements.copy()
    movements[EAGER] = movements[EAGER + 1]  # all others are alike
    weights, statistics = trained.spec.trainable, slice(trained.spec.trainable.stop, trained.spec.averaged.stop)
    movements[-1, weights] = -4 * movements[:-1, weights].mean(axis=0)
    movements[-1, statistics] = np.median(movements[:-1, statistics], axis=0)
    return Trained(trained.spec, trained.current, movements)


def test_statistics_move_much_further_than_weights(trained) -> None:
    lengths = np.linalg.norm(trained.statistics, axis=1), np.linalg.norm(trained.trainable, axis=1)
    others = np.arange(CLIENTS) != EAGER
    assert (lengths[0][others] > 100 * lengths[1][others]).all()
    assert np.argmax(lengths[1]) == EAGER == np.argmin(lengths[0])


def test_simprox_gives_the_client_that_moved_its_weights_most_the_lowest_weight(trained) -> None:
    result = SimProx().aggregate(trained.current, trained.updates, trained.spec)
    assert np.argmin(result.weights) == EAGER
    start = trained.current[trained.spec.trainable].astype(np.float64)
    np.testing.assert_allclose(result.weights, weights(start + trained.trainable, start), rtol=1e-6)


def test_simprox_averages_statistics_with_these_weights(trained) -> None:
    result = SimProx().aggregate(trained.current, trained.updates, trained.spec)
    statistics = slice(trained.spec.trainable.stop, trained.spec.averaged.stop)
    expected = trained.current[statistics] + result.weights @ trained.statistics
    np.testing.assert_allclose(result.parameters[statistics], expected, rtol=1e-5)


def test_simproxs_share_of_the_cosine_does_not_fall_because_statistics_differ(trained) -> None:
    start = trained.current[trained.spec.averaged].astype(np.float64)
    models = start + trained.movements[:, trained.spec.averaged]

    def mean_cosine(part: slice) -> float:
        rows, base = models[:, part], start[part]
        return float(np.mean(rows @ base / np.linalg.norm(rows, axis=1) / np.linalg.norm(base)))

    assert mean_cosine(trained.spec.averaged) < 0.9 < mean_cosine(trained.spec.trainable)
    # No threshold that the weights' cosine reaches makes a difference.
    low, high = (SimProx(threshold=threshold) for threshold in (0.1, 0.9))
    found = [server.aggregate(trained.current, trained.updates, trained.spec).weights for server in (low, high)]
    np.testing.assert_array_equal(*found)


def test_simprox_measures_own_last_models_alike(trained) -> None:
    server, moved = SimProx(prev="own_last"), trained.spec.trainable
    server.aggregate(trained.current, trained.updates, trained.spec)
    later = trained.current + np.float32(0.125)
    result = server.aggregate(later, trained.updates, trained.spec)
    start = later[moved].astype(np.float64)
    last = trained.current[moved].astype(np.float64) + trained.trainable
    np.testing.assert_allclose(result.weights, weights(start + trained.trainable, start, last), rtol=1e-5)


def test_multi_krum_drops_the_attacker(attacked) -> None:
    result = MultiKrum(attackers=1).aggregate(attacked.current, attacked.updates, attacked.spec)
    np.testing.assert_allclose(result.weights, [*[1 / 6] * 6, 0])
    statistics = slice(attacked.spec.trainable.stop, attacked.spec.averaged.stop)
    expected = attacked.current[statistics] + np.median(attacked.statistics, axis=0)
    np.testing.assert_allclose(result.parameters[statistics], expected, rtol=1e-5)


def test_krum_takes_the_client_with_the_closest_weights(attacked) -> None:
    rows = attacked.trainable
    squared = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    scores = [sum(sorted(np.delete(squared[row], row))[: CLIENTS - 1 - 2]) for row in range(CLIENTS)]
    result = Krum(attackers=1).aggregate(attacked.current, attacked.updates, attacked.spec)
    assert np.argmax(result.weights) == np.argmin(scores)


def test_the_geometric_median_damps_the_attacker(attacked) -> None:
    result = GeometricMedian().aggregate(attacked.current, attacked.updates, attacked.spec)
    assert np.argmin(result.weights) == CLIENTS - 1
    # The textbook iteration on the trainable parameters themselves.
    at = attacked.trainable.mean(axis=0)
    for _ in range(300):
        closeness = 1 / np.linalg.norm(attacked.trainable - at, axis=1)
        at = closeness @ attacked.trainable / closeness.sum()
    moved = attacked.spec.trainable
    np.testing.assert_allclose(result.parameters[moved], attacked.current[moved] + at, rtol=1e-3, atol=1e-5)


def test_the_guard_measures_weights(trained) -> None:
    lengths = np.linalg.norm(trained.trainable, axis=1)
    bound = np.sort(lengths)[-2:].mean()
    assert list(Guard(max_norm=float(bound)).objections(trained.movements, trained.spec)) == [EAGER]
