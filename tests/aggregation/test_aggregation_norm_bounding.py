"""Norm bounding."""

import numpy as np
import pytest

from muster.aggregation.norm_bounding import NormBounding, shortening
from muster.core.errors import ConfigError


def test_worked_example(advance) -> None:
    movements = [[30, 40], [0, 5]]
    result = advance(NormBounding(bound=10, weights="equal"), [0.0, 0.0], movements)
    np.testing.assert_allclose(result.parameters, [3, (8 + 5) / 2])


def test_the_median_length_is_the_bound_by_default(advance) -> None:
    movements = np.array([[1.0, 0], [0, 2.0], [300.0, 400.0]])
    result = advance(NormBounding(), [0.0, 0.0], movements)
    np.testing.assert_allclose(result.parameters, [(1 + 2 * 0.6) / 3, (2 + 2 * 0.8) / 3], rtol=1e-6)
    all_the_way = advance(NormBounding(quantile=1.0), [0.0, 0.0], movements)
    np.testing.assert_allclose(all_the_way.parameters, movements.mean(axis=0), rtol=1e-6)


def test_zero_stays_zero() -> None:
    np.testing.assert_array_equal(shortening(np.array([0.0, 1.0, 4.0]), 2.0), [1, 1, 0.5])


def test_attackers_pull_no_further_than_their_share_of_the_bound(advance) -> None:
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(16, 50)).astype(np.float32)
    attacked = np.concatenate([honest, np.full((4, 50), 1e9, dtype=np.float32)])
    bound = np.median(np.linalg.norm(attacked.astype(float), axis=1))
    lengths = np.linalg.norm(honest, axis=1, keepdims=True)
    without = (honest * np.minimum(1, bound / lengths)).sum(axis=0) / 20
    result = advance(NormBounding(), np.zeros(50), attacked).parameters
    assert np.linalg.norm(result - without) <= 0.2 * bound * (1 + 1e-6)


def test_running_statistics_have_a_bound_of_their_own(layout, cohort) -> None:
    movements = np.array([[1, 0, 100], [1, 0, 100], [1, 0, 1e6]], dtype=np.float32)
    result = NormBounding(bound=10).aggregate(
        np.zeros(3, dtype=np.float32), cohort(movements), layout([2], buffers=1)
    )
    np.testing.assert_allclose(result.parameters, [1, 0, 100])


@pytest.mark.parametrize("option", [{"bound": 0.0}, {"quantile": 1.5}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        NormBounding(**option).check(population())
