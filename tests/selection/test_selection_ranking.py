"""Taking the best few of many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection._ranking import highest, lowest


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(-2, 4), min_size=1, max_size=12),
    st.sampled_from([np.int64, np.float64]),
    st.integers(0, 14),
    st.booleans(),
    st.integers(0, 99),
)
def test_equals_a_full_sort(values, kind, count, by_lot, seed):
    values = np.array(values, dtype=kind)
    tie = np.random.default_rng(seed).random(len(values)) if by_lot else None
    order = np.lexsort((np.arange(len(values)) if tie is None else tie, values))
    assert lowest(values, count, tie).tolist() == sorted(order[:count].tolist())


@pytest.mark.parametrize(("count", "expected"), [(1, [3]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])])
def test_not_a_number_comes_last_and_infinity_first(count, expected):
    assert highest(np.array([np.nan, 2.0, -1.0, np.inf, np.nan]), count).tolist() == expected


def test_integers_far_apart():
    assert lowest(np.array([10**15, -(10**15), 7, 8]), 2).tolist() == [1, 2]
