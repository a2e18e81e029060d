"""A cap on weights: nobody above it, the sum stays, the others keep their proportions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muster.updates.table import capped

WEIGHTS = arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1e12))


def water_filled(weights: np.ndarray, most: float) -> np.ndarray:
    """The textbook way: whoever is above the cap is put to it, the rest shares what is left; again."""
    shares, fixed = weights / weights.sum(), np.zeros(len(weights), dtype=bool)
    for _ in range(len(weights)):
        above = ~fixed & (shares > most)
        if not above.any():
            break
        fixed |= above
        rest = weights[~fixed].sum()
        shares = np.where(fixed, most, weights * (1 - most * fixed.sum()) / rest if rest > 0 else 0)
    return shares * weights.sum()


@given(WEIGHTS, st.floats(0.05, 1.0))
def test_nobody_is_above_the_cap_and_the_sum_stays(weights, most):
    result = capped(weights, most)
    total = weights.sum()
    if total == 0:
        np.testing.assert_array_equal(result, weights)
        return
    taking_part = np.count_nonzero(weights)
    assert result.sum() == pytest.approx(total)
    assert (result >= 0).all()
    assert ((result > 0) <= (weights > 0)).all(), "who has no weight gets none"
    assert result.max() <= max(most, 1 / taking_part) * total * (1 + 1e-9)
    assert (np.diff(result[np.argsort(weights, kind="stable")]) >= -1e-9 * total).all(), "the order stays"


@given(WEIGHTS, st.floats(0.05, 1.0))
def test_it_is_water_filling(weights, most):
    weights = weights + 1.0  # the textbook form needs room for everybody
    if most * len(weights) > 1.001:
        np.testing.assert_allclose(capped(weights, most), water_filled(weights, most), rtol=1e-9)
    elif most * len(weights) <= 1:
        np.testing.assert_allclose(capped(weights, most), np.full(len(weights), weights.mean()))


@given(WEIGHTS, st.floats(0.05, 1.0))
def test_a_second_time_changes_nothing(weights, most):
    once = capped(weights, most)
    np.testing.assert_allclose(capped(once, most), once, rtol=1e-9)


def test_worked_examples():
    np.testing.assert_allclose(capped(np.array([8.0, 1.0, 1.0]), 0.5), [5.0, 2.5, 2.5])
    # The second is below the cap at first, and above it when it has got its part of what the first had.
    np.testing.assert_allclose(capped(np.array([60.0, 30.0, 9.0, 1.0]), 0.4), [40.0, 40.0, 18.0, 2.0])
    np.testing.assert_allclose(capped(np.array([7.0, 2.0, 1.0]), 0.2), [10 / 3] * 3)
    below = np.array([0.3, 0.3, 0.4])
    assert capped(below, 0.4) is below
    assert capped(below, None) is below
