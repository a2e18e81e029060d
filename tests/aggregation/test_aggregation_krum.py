"""Krum and multi-Krum."""

import numpy as np
import pytest

from muster.aggregation.krum import Krum, MultiKrum, krum_scores
from muster.core.errors import ConfigError, TrainingError

POINTS = np.array([[0, 0], [0.1, 0], [0, 0.1], [0.1, 0.1], [10, 10]])


def distances(points) -> np.ndarray:
    return ((points[:, None] - points[None]) ** 2).sum(axis=2)


def test_worked_example(advance) -> None:
    scores = krum_scores(distances(POINTS), attackers=1)
    np.testing.assert_allclose(scores, [0.02, 0.02, 0.02, 0.02, 394.03])
    one = advance(Krum(attackers=1), [0.0, 0.0], POINTS)
    np.testing.assert_allclose(one.parameters, [0, 0], atol=1e-7)
    three = advance(MultiKrum(attackers=1, keep=3), [0.0, 0.0], POINTS)
    np.testing.assert_allclose(three.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0])
    np.testing.assert_allclose(three.parameters, [0.033333, 0.033333], atol=1e-6)


def test_scores_equal_the_textbook_loop() -> None:
    points = np.random.default_rng(0).normal(size=(9, 4))
    squared = distances(points)
    expected = [sum(sorted(squared[i, j] for j in range(9) if j != i)[: 9 - 2 - 2]) for i in range(9)]
    np.testing.assert_allclose(krum_scores(squared, attackers=2), expected)


def test_ties_go_to_the_lowest_id(advance) -> None:
    # The corners of a square: every client has the same score.
    corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    points = np.concatenate([corners, [[50, 50]]])
    result = advance(Krum(attackers=1), [0.0, 0.0], points, clients=[3, 4, 8, 9, 11])
    np.testing.assert_array_equal(result.weights, [1, 0, 0, 0, 0])


def test_multi_krum_keeps_all_but_the_attackers_by_default(advance) -> None:
    result = advance(MultiKrum(attackers=1), [0.0, 0.0], POINTS)
    np.testing.assert_allclose(result.weights, [0.25, 0.25, 0.25, 0.25, 0])
    np.testing.assert_allclose(result.parameters, [0.05, 0.05])


def test_too_few_updates_are_an_error_or_a_median(advance) -> None:
    with pytest.raises(TrainingError, match="at least 2f \\+ 3 = 5"):
        advance(Krum(attackers=1), [0.0, 0.0], POINTS[:4])
    result = advance(Krum(attackers=1, too_few="median"), [0.0, 0.0], POINTS[:4])
    np.testing.assert_allclose(result.parameters, [0.05, 0.05])


@pytest.mark.parametrize("method", [Krum, MultiKrum])
def test_more_attackers_than_the_federation_can_bear_are_refused(population, method) -> None:
    method(attackers=8).check(population(20))
    with pytest.raises(ConfigError, match="at most 8"):
        method(attackers=9).check(population(20))


def test_impossible_options_are_refused(population) -> None:
    with pytest.raises(ConfigError, match="keep"):
        MultiKrum(keep=0).check(population())
    with pytest.raises(ConfigError, match="attackers"):
        Krum(attackers=-1).check(population())
