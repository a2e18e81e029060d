"""Geometric median."""

import numpy as np
import pytest
from scipy.optimize import minimize

from muster.aggregation.geometric_median import GeometricMedian, weiszfeld
from muster.core.errors import ConfigError

POINTS = np.array([[0, 0], [0.1, 0], [0, 0.1], [0.1, 0.1], [10, 10]])
EQUAL = np.full(5, 0.2)


@pytest.mark.parametrize(("iterations", "where"), [(1, 0.635799), (2, 0.205048), (3, 0.096609), (4, 0.095522)])
def test_worked_example(iterations, where) -> None:
    coefficients = weiszfeld(POINTS @ POINTS.T, EQUAL, iterations=iterations)
    np.testing.assert_allclose(coefficients @ POINTS, [where, where], atol=1e-6)


def test_limit_of_the_worked_example(advance) -> None:
    result = advance(GeometricMedian(iterations=2000, tolerance=1e-12), [0.0, 0.0], POINTS)
    np.testing.assert_allclose(result.parameters, [0.078868, 0.078868], atol=1e-6)


def test_minimises_the_weighted_sum_of_distances() -> None:
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(6, 3)), rng.dirichlet(np.ones(6))
    found = weiszfeld(points @ points.T, weights, iterations=3000, tolerance=1e-12) @ points

    def objective(z) -> float:
        return float(weights @ np.linalg.norm(points - z, axis=1))

    best = minimize(objective, points.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert objective(found) <= best.fun + 1e-9


def test_one_point_at_the_end_of_the_world_moves_it_a_little() -> None:
    points = np.random.default_rng(1).normal(size=(7, 4))
    without = weiszfeld(points[:6] @ points[:6].T, np.full(6, 1 / 6), iterations=500) @ points[:6]
    for far in (1e6, 1e15, 1e30):
        points[6] = far
        found = weiszfeld(points @ points.T, np.full(7, 1 / 7), iterations=500)
        assert np.linalg.norm(found[:6] @ points[:6] / found[:6].sum() - without) < 1


def test_iterate_may_sit_on_a_point() -> None:
    points = np.array([[0.0], [0.0], [0.0], [1.0]])
    np.testing.assert_allclose(weiszfeld(points @ points.T, np.full(4, 0.25)) @ points, [0], atol=1e-5)


def test_samples_may_weigh(advance) -> None:
    result = advance(GeometricMedian(weights="samples"), [0.0], [[0.0], [1.0], [2.0]], sizes=[1, 1, 10])
    np.testing.assert_allclose(result.parameters, [2], atol=1e-4)


@pytest.mark.parametrize("option", [{"smoothing": 0.0}, {"iterations": 0}, {"tolerance": -1.0}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        GeometricMedian(**option).check(population())
