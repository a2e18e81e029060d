"""Diversity score: worked example, and the fast mean divergence against all pairs."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.heterogeneity.divergences import js_distance, js_divergence, pairwise, shares
from muster.selection import _mean_js, diversity
from muster.selection._scaling import min_max
from muster.selection.diversity import DiversityScore, mean_distances, own_diversity, scores

EXAMPLE = np.array([[30, 0, 0, 0], [10, 10, 10, 0], [5, 5, 10, 10]])


def all_pairs(histograms):
    return pairwise(histograms, js_divergence).sum(axis=1) / max(1, len(histograms) - 1)


def test_worked_example_own_diversity():
    np.testing.assert_allclose(own_diversity(shares(EXAMPLE)), [0.125, 0.771241, 0.979574], atol=5e-7)


def test_worked_example_divergence():
    np.testing.assert_allclose(scores(EXAMPLE, 0), [0.557003, 0.333333, 0.431188], atol=5e-7)
    np.testing.assert_allclose(scores(EXAMPLE, 0, unit="nats"), [0.386085, 0.231049, 0.298877], atol=5e-7)
    np.testing.assert_allclose(scores(EXAMPLE, unit="nats"), [0.255542, 0.501145, 0.639225], atol=5e-7)


def test_worked_example_ref():
    distances = pairwise(EXAMPLE, js_distance)
    np.testing.assert_allclose(distances[[0, 0, 1], [1, 2, 2]], [0.564143, 0.673730, 0.379264], atol=5e-7)
    np.testing.assert_allclose(scores(EXAMPLE, 0, js="ref"), [1, 0.762119, 0.850648], atol=5e-7)
    values = scores(EXAMPLE, js="ref")
    np.testing.assert_allclose(values, [0.5625, 0.766680, 0.915111], atol=5e-7)
    weights = min_max(values) + 0.01
    np.testing.assert_allclose(weights / weights.sum(), [0.006215, 0.366086, 0.627699], atol=5e-7)


def test_alone_or_all_alike_there_is_no_distance():
    np.testing.assert_array_equal(scores(EXAMPLE[:1], 0), [0])
    np.testing.assert_allclose(scores(np.full((5, 3), 7), 0), np.zeros(5), atol=1e-15)
    np.testing.assert_allclose(scores(np.full((5, 3), 7), 0, js="ref"), np.zeros(5), atol=1e-7)
    np.testing.assert_allclose(scores(np.array([[4], [9]])), [0.25, 0.25])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any), min_size=2, max_size=15))
def test_mean_divergence_is_exact_on_few_values(rows):
    np.testing.assert_allclose(_mean_js.mean_js(shares(rows)), all_pairs(np.array(rows)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("concentration", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("classes", [2, 40])
def test_interpolation_keeps_its_promise(concentration, classes, monkeypatch):
    rows = np.random.default_rng(0).dirichlet(np.full(classes, concentration), 600)
    rows[rows < 1e-6] = 0
    rows[:2] = np.eye(classes)[:2]
    rows[2] = np.eye(classes)[0] * (1 - 1e-14) + 1e-14
    monkeypatch.setattr(_mean_js, "EXACT", 0)
    error = np.abs(_mean_js.mean_js(shares(rows)) - all_pairs(rows)).max()
    assert error <= 1e-8


def test_many_distinct_values_are_interpolated_and_few_are_not(monkeypatch):
    called = []
    real = _mean_js._interpolated_sums

    def counted(*arguments):
        called.append(1)
        return real(*arguments)

    monkeypatch.setattr(_mean_js, "_interpolated_sums", counted)
    rng = np.random.default_rng(0)
    _mean_js.mean_js(rng.multinomial(50, [0.2] * 5, 2000) / 50)
    assert not called
    _mean_js.mean_js(rng.dirichlet(np.ones(5), 2000))
    assert len(called) == 5


@pytest.mark.parametrize("js", ["divergence", "ref"])
def test_scores_follow_their_clients(js):
    rng = np.random.default_rng(3)
    histograms, order = rng.integers(1, 9, (40, 5)), rng.permutation(40)
    moved = scores(histograms[order], js=js)
    np.testing.assert_allclose(moved, scores(histograms, js=js)[order], atol=1e-7)


def test_mean_distances_are_estimated_from_a_sample_beyond_the_limit(monkeypatch):
    rows = np.random.default_rng(1).dirichlet(np.full(4, 0.5), 300)
    exact = mean_distances(rows)
    np.testing.assert_allclose(exact, pairwise(rows, js_distance).mean(axis=1), atol=1e-7)
    monkeypatch.setattr(diversity, "REF_EXACT", 100)
    monkeypatch.setattr(diversity, "REF_SAMPLE", 100)
    bound = np.sqrt(np.log(2)) / 2 / np.sqrt(100)
    assert np.abs(mean_distances(rows, np.random.default_rng(2)) - exact).max() < 4 * bound
    with pytest.raises(ConfigError, match="sample"):
        mean_distances(rows)


def test_probabilities(federation):
    fed = federation(3, script={"label_histogram": EXAMPLE}, sizes=[30, 30, 30])
    selector = DiversityScore(clients_per_round=1, js="ref")
    fed.run(selector, 3000)
    expected = 3000 * np.array([0.006215, 0.366086, 0.627699])
    assert np.abs(fed.history.trainings - expected).max() < 4 * np.sqrt(3000 * 0.25)


def test_top_takes_the_same_clients_for_ever(federation):
    fed = federation(3, script={"label_histogram": EXAMPLE})
    rounds = fed.run(DiversityScore(clients_per_round=2, pick="top"), 3)
    assert [played.trained.tolist() for played in rounds] == [[1, 2]] * 3
    assert [len(played.asks) for played in rounds] == [1, 0, 0]


def test_newcomers_are_asked_and_scored(federation):
    histograms = np.random.default_rng(0).integers(1, 9, (8, 4))
    fed, selector = federation(6, script={"label_histogram": histograms}), DiversityScore(clients_per_round=2)
    fed.play(selector)
    fed.grow([10, 10])
    assert fed.play(selector).asks[0].clients.tolist() == [6, 7]
    np.testing.assert_allclose(selector.weights, min_max(scores(histograms)) + 0.01)


def test_silent_clients_keep_the_smallest_weight(federation):
    fed, selector = federation(6), DiversityScore(clients_per_round=2)
    fed.play(selector, drop=[0, 1])
    np.testing.assert_array_equal(selector.weights[:2], [0.01, 0.01])


@pytest.mark.parametrize("options", [{}, {"js": "ref", "alpha": 0.2}, {"pick": "top"}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: DiversityScore(clients_per_round=4, **options), 4)


@pytest.mark.parametrize("options", [{"alpha": 2}, {"lam": -1}, {"epsilon": 0}, {"clients_per_round": 13}])
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        DiversityScore(**({"clients_per_round": 4} | options)).check(federation(12).population)


@pytest.mark.bench
def test_a_hundred_thousand_clients_with_a_hundred_classes():
    histograms = np.random.default_rng(0).dirichlet(np.full(100, 0.1), 100_000)
    start = time.perf_counter()
    scores(histograms)
    assert time.perf_counter() - start < 60


@pytest.mark.bench
def test_a_hundred_of_a_million_in_a_second(federation):
    fed, selector = federation(1_000_000), DiversityScore(clients_per_round=100)
    fed.play(selector)
    assert fed.play(selector).seconds < 1
