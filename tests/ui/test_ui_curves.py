"""Thinned curves look the same; bands are over what is there; problems are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.ui.comparing import band, problem_names, problem_of
from muster.ui.curves import thinned

numbers = st.floats(-10, 10) | st.just(float("nan"))


@given(st.lists(numbers, max_size=300), st.integers(1, 20))
def test_a_thinned_curve_keeps_its_ends_and_every_extreme(values, stretches):
    values = np.array(values, dtype=np.float64)
    kept = thinned(values, stretches)
    known = np.flatnonzero(~np.isnan(values))
    assert len(kept) <= 2 * stretches + 2
    assert not np.isnan(values[kept]).any()
    assert np.all(np.diff(kept) > 0)
    if len(known):
        assert (kept[0], kept[-1]) == (known[0], known[-1])
        assert values[kept].min() == values[known].min()
        assert values[kept].max() == values[known].max()
    if len(known) <= 2 * stretches:
        assert np.array_equal(kept, known)


def test_one_spike_among_ten_thousand_rounds_is_seen():
    values = np.full(10_000, 0.5)
    values[7321] = 0.1
    assert 7321 in thinned(values)


def test_a_band_by_hand():
    runs = [
        (np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.3, 0.5])),
        (np.array([1.0, 3.0, 5.0]), np.array([0.3, 0.5, 0.9])),
    ]
    work, mean, low, high = band(runs)
    assert work.tolist() == [1, 2, 3, 4]
    assert mean == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert low == pytest.approx([0.1, 0.3, 0.3, 0.5])
    assert high == pytest.approx([0.3, 0.3, 0.5, 0.5])


def config(alpha, method="random", **more):
    return {
        "seed": 3,
        "data": {"source": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": alpha},
        "selection": {"method": method},
        **more,
    }


def test_methods_and_seeds_make_no_problem_but_partitions_do():
    assert problem_of(config(0.1)) == problem_of(config(0.1, "terraform", seed=4, name="x"))
    assert problem_of(config(0.1)) != problem_of(config(1.0))


def test_problems_are_called_by_what_they_differ_in():
    assert problem_names([config(0.1), config(1.0)]) == ["digits, alpha 0.1", "digits, alpha 1.0"]
    assert problem_names([config(0.1)]) == ["digits"]
