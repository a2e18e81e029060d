"""Coordinate-wise trimmed mean."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from muster.aggregation.trimmed_mean import TrimmedMean, trimmed_mean
from muster.core.errors import ConfigError

POINTS = np.array([[0, 0], [0.1, 0], [0, 0.1], [0.1, 0.1], [10, 10]])


def test_worked_example(advance) -> None:
    result = advance(TrimmedMean(ratio=0.2), [0.0, 0.0], POINTS)
    np.testing.assert_allclose(result.parameters, [0.066667, 0.066667], atol=1e-6)


@pytest.mark.parametrize(("clients", "ratio"), [(1, 0.4), (7, 0.1), (7, 0.3), (10, 0.0), (20, 0.45)])
def test_equals_scipys_trimmed_mean(clients, ratio) -> None:
    rows = np.random.default_rng(0).normal(size=(clients, 10_000)).astype(np.float32)
    np.testing.assert_allclose(trimmed_mean(rows, ratio), trim_mean(rows.astype(float), ratio, axis=0), atol=1e-12)


@pytest.mark.parametrize("clients", [5, 10, 15, 35])
def test_a_fifth_is_a_fifth_in_floating_point(clients) -> None:
    rows = np.arange(clients, dtype=np.float32)[:, None] ** 2
    drop = clients // 5
    np.testing.assert_allclose(trimmed_mean(rows, 0.2), rows[drop : clients - drop].mean())


@pytest.mark.parametrize("ratio", [-0.1, 0.5])
def test_impossible_ratios_are_refused(population, ratio) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        TrimmedMean(ratio=ratio).check(population())
