"""Thinned curves look the same; bands are over what is there; problems are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.report.compare import Options, compare
from muster.ui.comparing import band, comparison_view
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


def problem(alpha):
    return {
        "data": {"source": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": alpha},
        "model": {"name": "mlp"},
    }


def shown(runs, **options):
    """Problem → the methods that the page shows in it."""
    parts = comparison_view(runs, Options(**options), "round")["problems"]
    return {part["problem"]: sorted(part["fingerprints"]) for part in parts}


def told(runs):
    """The same, as `muster compare` tells it."""
    return {judged.name: sorted(case.name for case in judged.cases) for judged in compare(runs).judged}


def test_problems_are_those_of_the_command(made):
    runs = [made(name, **problem(alpha)) for alpha in (0.1, 1.0) for name in ("random", "terraform")]
    runs.append(made("late", pacing={"method": "semi-synchronous"}, **problem(0.1)))
    runs.append(made("rarely", evaluation={"every": 3}, **problem(0.1)))
    assert shown(runs) == told(runs)
    assert any("late" in methods and "random" in methods for methods in shown(runs).values()), "pacing is a method"


def test_centralised_training_is_a_row_in_every_problem(made):
    runs = [made(name, **problem(0.1), rounds=rounds) for rounds in (3, 4) for name in ("random", "terraform")]
    runs.append(made("all data", **problem(0.1), training={"mode": "centralised"}))
    assert shown(runs) == told(runs)
    assert [len(methods) for methods in shown(runs).values()] == [3, 3]


def test_one_problem_is_called_by_its_data(made):
    assert list(shown([made("a", **problem(0.1)), made("b", **problem(0.1))])) == ["digits"]
    assert list(shown([made("a"), made("b")])) == ["own data"]


def test_what_cannot_be_compared_is_one_trouble(made):
    runs = [made(name, **problem(alpha)) for alpha in (0.1, 1.0) for name in ("a", "b")]
    (part,) = comparison_view(runs, Options(baseline="nobody"), "round")["problems"]
    assert part["problem"] == "digits"
    assert "nobody" in part["trouble"]
