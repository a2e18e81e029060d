"""Clustered sampling by size."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.clustered_size import ClusteredSize, draw, size_urns


def test_contract(keeps_contract):
    keeps_contract(lambda: ClusteredSize(clients_per_round=4), 4)
    keeps_contract(lambda: ClusteredSize(clients_per_round=20, equal_weights=False), 15)


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([40, 30, 20, 10], [[0.8, 0.2, 0, 0], [0, 0.4, 0.4, 0.2]]),
        ([70, 20, 10], [[1, 0, 0], [0.4, 0.4, 0.2]]),
    ],
)
def test_worked_examples(sizes, rows):
    np.testing.assert_allclose(size_urns(np.array(sizes), 2).probabilities(len(sizes)), rows, atol=1e-12)


def poured(sizes, count):
    """The definition: pour tokens one client after the other, in rational numbers."""
    order = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    rows = [[Fraction(0)] * len(sizes) for _ in range(count)]
    urn, room = 0, Fraction(1)
    for client in order:
        left = Fraction(count * sizes[client], sum(sizes))
        while left > 0:
            part = min(left, room)
            rows[urn][client] += part
            left, room = left - part, room - part
            if room == 0 and urn + 1 < count:
                urn, room = urn + 1, Fraction(1)
    return np.array(rows, dtype=float)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 15))
def test_equals_pouring_tokens(sizes, count):
    urns = size_urns(np.array(sizes), count).probabilities(len(sizes))
    np.testing.assert_allclose(urns, poured(sizes, count), atol=1e-12)
    np.testing.assert_allclose(urns.sum(axis=1), 1)
    np.testing.assert_allclose(urns.sum(axis=0), count * np.array(sizes) / sum(sizes))


def test_draws_follow_the_urns():
    sizes, rng = np.array([40, 30, 20, 10]), np.random.default_rng(0)
    urns = size_urns(sizes, 2)
    draws = np.array([draw(urns, rng) for _ in range(8000)])
    seen = np.array([np.bincount(draws[:, urn], minlength=4) for urn in range(2)]) / 8000
    np.testing.assert_allclose(seen, urns.probabilities(4), atol=0.02)


def test_draws_count_as_often_as_they_happen(federation):
    train = federation(3, sizes=[70, 20, 10]).play(ClusteredSize(clients_per_round=4)).trains[0]
    assert train.multiplicity.sum() == 4
    assert train.multiplicity[train.clients.tolist().index(0)] >= 2
    assert train.weights.tolist() == [1.0] * len(train.clients)


def test_the_mean_is_unbiased(federation):
    fed = federation(6, sizes=[50, 40, 30, 20, 10, 5])
    weights = np.zeros(6)
    for played in fed.run(ClusteredSize(clients_per_round=3), 2000):
        train = played.trains[0]
        weights[train.clients] += train.multiplicity / 3
    np.testing.assert_allclose(weights / 2000, fed.sizes / fed.sizes.sum(), atol=0.02)


def test_urns_are_made_of_the_available_clients(federation):
    fed = federation(6, sizes=[1000, 10, 10, 10, 10, 10])
    for _ in range(20):
        assert fed.play(ClusteredSize(clients_per_round=4), available=[1, 2, 3, 4]).trained.tolist() == [
            1,
            2,
            3,
            4,
        ]


def test_a_count_of_zero_is_refused(federation):
    with pytest.raises(ConfigError, match="clients_per_round is 0"):
        ClusteredSize(clients_per_round=0).check(federation(3).population)
