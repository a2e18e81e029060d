"""Sign vote: one vote a client and coordinate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.aggregation.sign_vote import SignVote, majority
from muster.core.errors import ConfigError


@given(st.lists(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 3.0]), min_size=4, max_size=4), min_size=1, max_size=9))
def test_equals_counting(rows):
    for least in (1, 2, 3):
        expected = []
        for column in zip(*rows, strict=True):
            votes = sum(value > 0 for value in column) - sum(value < 0 for value in column)
            expected.append(0 if abs(votes) < least else 1 if votes > 0 else -1)
        assert majority(np.array(rows, dtype=np.float32), least).tolist() == expected


def test_worked_example(advance):
    movements = [[1e9, -1.0, 0.5], [-1.0, -2.0, -0.5], [-0.1, 3.0, 0.0]]
    result = advance(SignVote(server_lr=0.1), [1.0, 1.0, 1.0], movements)
    np.testing.assert_allclose(result.parameters, [0.9, 0.9, 1.0])
    np.testing.assert_allclose(result.weights, [1 / 3] * 3)


def test_a_margin_keeps_disputed_coordinates_still(advance):
    movements = [[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]
    moved = advance(SignVote(server_lr=1.0, margin=0.6), [0.0, 0.0], movements).parameters
    np.testing.assert_allclose(moved, [1.0, 0.0])


def test_a_minority_cannot_turn_a_coordinate_on_which_honest_clients_agree(advance):
    honest, attack = np.ones((6, 3)), np.full((5, 3), -1e30)
    moved = advance(SignVote(server_lr=0.01), np.zeros(3), np.vstack([attack, honest])).parameters
    np.testing.assert_allclose(moved, 0.01)


@pytest.mark.parametrize("margin", [-0.1, 1.1])
def test_bad_options(population, margin):
    with pytest.raises(ConfigError, match="margin"):
        SignVote(margin=margin).check(population())
