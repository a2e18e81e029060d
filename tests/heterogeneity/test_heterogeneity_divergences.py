"""Distances between label distributions, and diagnostics of cohorts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from muster.core.errors import DataError
from muster.heterogeneity import cohort, divergences

P, Q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
ALL = [
    divergences.js_divergence,
    divergences.js_distance,
    divergences.hellinger,
    divergences.total_variation,
    divergences.earth_mover,
    divergences.euclidean,
]


def test_worked_example():
    assert divergences.js_divergence(P, Q) == pytest.approx(0.215762, abs=5e-7)
    assert divergences.js_divergence(P, Q, "bits") == pytest.approx(0.311278, abs=5e-7)
    assert divergences.js_distance(P, Q) == pytest.approx(0.464501, abs=5e-7)
    assert divergences.total_variation(P, Q) == 0.5
    assert divergences.earth_mover(P, Q) == 1.0


def test_hellinger_between_disjoint_and_equal():
    assert divergences.hellinger([1, 0], [0, 1]) == pytest.approx(1)
    assert divergences.hellinger([2, 6], [1, 3]) == 0


histogram = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any)


@settings(max_examples=60, deadline=None)
@given(histogram, histogram, st.sampled_from(ALL))
def test_symmetric_zero_on_itself_and_blind_to_scale(p, q, divergence):
    p, q = np.array(p), np.array(q)
    assert divergence(p, q) == pytest.approx(float(divergence(q, p)), abs=1e-12)
    assert divergence(p, p) == pytest.approx(0, abs=1e-8)
    assert divergence(3 * p, q) == pytest.approx(float(divergence(p, q)), abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(histogram, histogram)
def test_agrees_with_scipy(p, q):
    assert divergences.js_distance(p, q) == pytest.approx(np.nan_to_num(jensenshannon(p, q)), abs=1e-7)


def test_pairwise_and_pooled():
    rows = np.random.default_rng(0).integers(1, 9, (6, 3))
    matrix = divergences.pairwise(rows, divergences.hellinger)
    expected = [[divergences.hellinger(a, b) for b in rows] for a in rows]
    np.testing.assert_allclose(matrix, expected, atol=1e-12)
    pooled = [divergences.js_divergence(row, rows.sum(axis=0)) for row in rows]
    np.testing.assert_allclose(divergences.to_pooled(rows), pooled)


def test_an_empty_histogram_is_refused():
    with pytest.raises(DataError, match="without samples"):
        divergences.js_divergence([0, 0], [1, 1])


def test_imbalance_of_a_cohort():
    histograms = np.array([[0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0]])
    assert cohort.imbalance(histograms) == pytest.approx(0)
    assert cohort.imbalance(histograms[:1]) == pytest.approx(1 / 6)


def test_triplet_correlations():
    true = np.array([[0.1, 0.2, 0.5], [0.2, 0.2, 0.4], [0.3, 0.2, 0.1]])
    estimated = true * [2, 1, -1] + [0, 0, 1]
    values = cohort.triplet_correlations(estimated, true)
    assert values["CI"] == pytest.approx(1)
    assert np.isnan(values["AI"])
    assert values["SC"] == pytest.approx(-1)
