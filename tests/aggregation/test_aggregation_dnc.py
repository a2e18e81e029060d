"""DnC: scores are those of a singular value decomposition, outliers are left out, resumed draws are the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.aggregation.dnc import DivideAndConquer, inconspicuous, outlier_scores
from muster.core.errors import ConfigError, TrainingError


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 12))
def test_scores_are_projections_on_the_first_singular_vector(seed, clients, width):
    rows = np.random.default_rng(seed).normal(size=(clients, width))
    centred = rows - rows.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    if len(values) > 1 and values[0] - values[1] < 1e-6:
        return
    np.testing.assert_allclose(outlier_scores(rows), (centred @ directions[0]) ** 2, atol=1e-8)


def test_worked_example(advance):
    movements = np.array([[1.0, 0.0], [1.1, 0.1], [0.9, -0.1], [1.0, 0.1], [-9.0, 0.0]])
    result = advance(DivideAndConquer(attackers=1, iterations=1), [0.0, 0.0], movements)
    np.testing.assert_allclose(result.weights, [0.25] * 4 + [0.0])
    np.testing.assert_allclose(result.parameters, [1.0, 0.025], atol=1e-6)


def test_equal_scores_stay_or_go_together():
    assert inconspicuous(np.zeros(5), 3).all()
    assert inconspicuous(np.array([0.1, 0.2, 0.2, 0.9]), 2).tolist() == [True, False, False, False]
    assert inconspicuous(np.array([0.1, 0.2, 0.3, 0.9]), 3).tolist() == [True, True, True, False]


def test_every_aggregation_draws_other_coordinates_and_a_resumed_one_the_same(advance):
    movements = np.random.default_rng(2).normal(size=(9, 40))
    one = DivideAndConquer(attackers=3, iterations=1, dimensions=2)
    first = advance(one, np.zeros(40), movements)
    other = DivideAndConquer(attackers=3, iterations=1, dimensions=2)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    second, resumed = advance(one, np.zeros(40), movements), advance(other, np.zeros(40), movements)
    np.testing.assert_array_equal(second.parameters, resumed.parameters)
    assert not np.array_equal(first.weights, second.weights)


def test_colluding_attackers_are_left_out(advance):
    rng = np.random.default_rng(3)
    honest = rng.normal(size=(15, 50)) * 0.1 + 1
    attack = np.tile(honest.mean(axis=0) - 1.5, (4, 1))
    result = advance(DivideAndConquer(attackers=4), np.zeros(50), np.vstack([attack, honest]))
    assert not result.weights[:4].any()


def test_too_few_and_bad_options(population, advance):
    with pytest.raises(TrainingError, match="3 updates came, and 3 are to be left out"):
        advance(DivideAndConquer(attackers=3), np.zeros(2), np.ones((3, 2)))
    for options in ({"attackers": -1}, {"filter_factor": 0.0}, {"iterations": 0}, {"dimensions": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            DivideAndConquer(**options).check(population())


def test_one_attacker_more_than_expected_saves_nobody_when_all_send_the_same():
    scores = np.array([0.1, 0.2, 0.3, 0.4, 9.0, 9.0, 9.0])
    assert inconspicuous(scores, 5).tolist() == [True] * 4 + [False] * 3
    assert inconspicuous(np.ones(4), 2).all(), "nobody stands out"
