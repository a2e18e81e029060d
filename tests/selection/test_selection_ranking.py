"""Taking the best few of many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection._ranking import highest, lowest

VALUES = st.lists(st.integers(-2, 4), min_size=1, max_size=12)
KINDS = st.sampled_from([np.int64, np.float64])


@settings(max_examples=80, deadline=None)
@given(VALUES, KINDS, st.integers(0, 14), st.integers(0, 99))
def test_the_values_are_those_of_a_full_sort(values, kind, count, seed):
    values = np.array(values, dtype=kind)
    found = lowest(values, count, np.random.default_rng(seed))
    assert (np.diff(found) > 0).all()
    assert np.sort(values[found]).tolist() == np.sort(values)[:count].tolist()


@settings(max_examples=40, deadline=None)
@given(VALUES, KINDS, st.integers(0, 14))
def test_without_a_generator_the_first_of_equals_win(values, kind, count):
    values = np.array(values, dtype=kind)
    assert lowest(values, count, None).tolist() == sorted(np.argsort(values, kind="stable")[:count].tolist())


def test_equals_have_equal_chances():
    rng = np.random.default_rng(0)
    values = np.array([5.0, 1.0, 5.0, 5.0, 9.0, 5.0])
    counts = np.bincount(np.concatenate([lowest(values, 2, rng) for _ in range(2000)]), minlength=6)
    assert counts[1] == 2000
    assert counts[4] == 0
    assert np.abs(counts[[0, 2, 3, 5]] - 500).max() < 4 * np.sqrt(2000 * 0.25 * 0.75)


def test_where_nothing_is_tied_nothing_is_drawn():
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert highest(np.array([3.0, 1.0, 1.0, 2.0]), 2, rng).tolist() == [0, 3]
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(("count", "expected"), [(1, [3]), (2, [1, 3]), (3, [1, 2, 3])])
def test_not_a_number_comes_last_and_infinity_first(count, expected):
    scores = np.array([np.nan, 2.0, -1.0, np.inf, np.nan])
    assert highest(scores, count, np.random.default_rng(0)).tolist() == expected


def test_integers_far_apart():
    assert lowest(np.array([10**15, -(10**15), 7, 8]), 2, np.random.default_rng(0)).tolist() == [1, 2]
