"""Statistics of updates."""

import numpy as np
import pytest

from muster.aggregation.statistics import agreement, clipped_share, effective_clients


def test_effective_clients_counts_those_that_count() -> None:
    assert effective_clients(np.full(5, 0.2)) == pytest.approx(5)
    assert effective_clients(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_clients(np.array([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)


def test_lengths_and_cosines_to_the_mean() -> None:
    movements = np.random.default_rng(0).normal(size=(5, 400)).astype(np.float32)
    weights = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    mean = weights @ movements.astype(float)
    lengths, cosines = agreement(movements, weights)
    np.testing.assert_allclose(lengths, np.linalg.norm(movements.astype(float), axis=1))
    np.testing.assert_allclose(cosines, movements @ mean / (lengths * np.linalg.norm(mean)), atol=1e-6)


def test_movements_of_zero_have_no_direction() -> None:
    lengths, cosines = agreement(np.array([[0, 0], [3, 4]], dtype=np.float32), np.array([0.5, 0.5]))
    np.testing.assert_allclose(lengths, [0, 5])
    np.testing.assert_allclose(cosines, [0, 1])


def test_share_of_clipped_movements() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 4.0])
    assert clipped_share(lengths, 2.0) == 0.5
    assert clipped_share(lengths, None) == 0.0
