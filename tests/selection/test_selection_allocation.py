"""Slots for groups."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection._allocation import remainders_within_caps


@pytest.mark.parametrize(
    ("sizes", "total", "at_least", "slots"),
    [
        ([6, 4, 2], 6, 1, [3, 2, 1]),
        ([1, 1, 10], 6, 1, [1, 1, 4]),
        ([1, 1, 10], 6, 0, [1, 0, 5]),
        ([5, 3, 2], 2, 1, [1, 1, 0]),
        ([2, 1], 9, 1, [2, 1]),
    ],
)
def test_slots_in_proportion_to_size(sizes, total, at_least, slots):
    sizes = np.array(sizes)
    assert remainders_within_caps(sizes.astype(float), total, sizes, at_least).tolist() == slots


def test_homogeneity_shares_of_three_clusters():
    shares = np.array([0.624444, 0.229888, 0.145667])
    assert remainders_within_caps(shares, 3, np.array([3, 2, 1])).tolist() == [2, 1, 0]


def test_what_a_full_group_cannot_take_goes_to_the_others():
    assert remainders_within_caps(np.array([0.2, 2.8]), 3, np.array([4, 2])).tolist() == [1, 2]


def test_zero_or_broken_shares_mean_shares_by_cap():
    caps = np.array([4, 2])
    assert remainders_within_caps(np.zeros(2), 3, caps).tolist() == [2, 1]
    assert remainders_within_caps(np.array([np.nan, -1.0]), 3, caps).tolist() == [2, 1]


def test_nothing_to_share():
    assert remainders_within_caps(np.ones(2), 0, np.array([1, 1])).tolist() == [0, 0]
    assert remainders_within_caps(np.ones(2), 3, np.array([0, 0])).tolist() == [0, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 40))
def test_without_caps_it_is_hamiltons_method(shares, total):
    if sum(shares) == 0:
        return
    exact = [Fraction(total * share, sum(shares)) for share in shares]
    expected = [int(share) for share in exact]
    by_remainder = sorted(range(len(shares)), key=lambda g: (-(exact[g] - int(exact[g])), g))
    for group in by_remainder[: total - sum(expected)]:
        expected[group] += 1
    assert (
        remainders_within_caps(np.array(shares, dtype=float), total, np.full(len(shares), 1000)).tolist()
        == expected
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 6)), min_size=1, max_size=6), st.integers(0, 30))
def test_fills_all_slots_that_fit_and_respects_the_caps(groups, total):
    shares, caps = np.array([g[0] for g in groups]), np.array([g[1] for g in groups])
    slots = remainders_within_caps(shares, total, caps, at_least=1)
    assert slots.sum() == min(total, caps.sum())
    assert (slots <= caps).all()
    if total >= np.minimum(caps, 1).sum():
        assert (slots >= np.minimum(caps, 1)).all()
