"""Coordinate-wise median."""

import numpy as np
import pytest

from muster.aggregation.median import Median, coordinate_median

POINTS = np.array([[0, 0], [0.1, 0], [0, 0.1], [0.1, 0.1], [10, 10]])


def test_worked_example(advance) -> None:
    np.testing.assert_allclose(advance(Median(), [0.0, 0.0], POINTS).parameters, [0.1, 0.1])


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
def test_equals_numpys_median(clients) -> None:
    rows = np.random.default_rng(0).normal(size=(clients, 20_000)).astype(np.float32)
    np.testing.assert_array_equal(coordinate_median(rows), np.median(rows.astype(float), axis=0))


def test_middle_of_two_huge_values_does_not_overflow() -> None:
    rows = np.full((2, 1), 3e38, dtype=np.float32)
    np.testing.assert_allclose(coordinate_median(rows), 3e38, rtol=1e-6)


def test_sample_counts_do_not_matter(advance) -> None:
    result = advance(Median(), [0.0, 0.0], POINTS, sizes=[1, 1, 1, 1, 1000])
    np.testing.assert_allclose(result.parameters, [0.1, 0.1])
