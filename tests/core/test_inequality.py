"""Participation fairness: worked examples, and a slow count of waits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core import inequality


def test_worked_example():
    counts = np.array([5, 3, 0, 2])
    assert inequality.gini(counts) == pytest.approx(0.4)
    assert inequality.jain(counts) == pytest.approx(0.657895, abs=5e-7)
    assert inequality.coverage(counts) == 0.75


def test_waits_of_the_worked_example():
    active = [{0, 2, 3, 5, 7}, {1, 4, 9}, set()]
    selections = [np.array([k for k in range(3) if r in active[k]], dtype=int) for r in range(10)]
    np.testing.assert_array_equal(inequality.longest_waits(selections, 3), [3, 5, 11])
    np.testing.assert_array_equal(inequality.counts_of(selections, 3), [5, 3, 0])
    values = inequality.summary(selections, 3)
    assert values["longest_wait"] == 11
    assert values["wait_95"] == pytest.approx(np.percentile([3, 5, 11], 95))


@pytest.mark.parametrize("counts", [np.zeros(4), np.full(4, 3)])
def test_equal_participation_is_fair(counts):
    assert inequality.gini(counts) == pytest.approx(0)
    assert inequality.jain(counts) == pytest.approx(1)
    assert inequality.evenness(counts) == pytest.approx(1)


def test_one_client_has_everything():
    counts = np.array([0, 0, 0, 12])
    assert inequality.gini(counts) == pytest.approx(0.75)
    assert inequality.jain(counts) == pytest.approx(0.25)
    assert inequality.evenness(counts) == 0


rounds = st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(rounds)
def test_equals_the_slow_count(selections):
    waits, counts = [], []
    for client in range(5):
        times = [-1, *(r for r, chosen in enumerate(selections) if client in chosen), len(selections)]
        waits.append(max(b - a for a, b in itertools.pairwise(times)))
        counts.append(len(times) - 2)
    arrays = [np.array(chosen, dtype=int) for chosen in selections]
    np.testing.assert_array_equal(inequality.longest_waits(arrays, 5), waits)
    np.testing.assert_array_equal(inequality.counts_of(arrays, 5), counts)
