"""Fed-CBS."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.fedcbs import FLOOR, Candidates, FedCBS, build_group, draw_by_log_weight, imbalance

EXAMPLE = np.array(
    [[5, 5, 5, 5, 5, 5], [6, 6, 6, 6, 6, 0], [0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0]], dtype=float
)


@pytest.mark.parametrize("options", [{}, {"mode": "greedy"}, {"exploration": 0.0}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: FedCBS(clients_per_round=4, **options), 4)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ([0], 0),
        ([1], 0.033333),
        ([2], 0.166667),
        ([3], 0.166667),
        ([0, 1], 0.008333),
        ([2, 3], 0),
        ([0, 1, 2], 0.014815),
        ([1, 2, 3], 0.003704),
        ([0, 2, 3], 0),
    ],
)
def test_worked_example(group, expected):
    assert imbalance(EXAMPLE[group]) == pytest.approx(expected, abs=5e-7)


def test_worked_example_of_the_second_pick():
    candidates = Candidates.of(EXAMPLE)
    values = candidates.imbalances(np.array([1]), *candidates.buffers()).astype(np.float64)
    weights = np.maximum(values, FLOOR)[[0, 2, 3]] ** -2.0
    np.testing.assert_allclose(weights / weights.sum(), [0.927536, 0.057971, 0.014493], atol=5e-7)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 1000))
def test_running_form_equals_the_definition(clients, classes, seed):
    rng = np.random.default_rng(seed)
    histograms = rng.integers(0, 40, size=(clients, classes)) + np.eye(classes, dtype=int)[rng.integers(classes)]
    members = rng.choice(clients, size=int(rng.integers(0, clients)), replace=False)
    candidates = Candidates.of(histograms)
    values = candidates.imbalances(members, *candidates.buffers())
    expected = [imbalance(histograms[np.append(members, k)]) for k in range(clients)]
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-7)


def test_second_picks_follow_the_weights():
    rng, seen = np.random.default_rng(0), np.zeros((4, 4))
    candidates = Candidates.of(EXAMPLE)
    for _ in range(4000):
        first, second = build_group(candidates, 2, np.full(4, 1e9), "sample", rng)
        seen[first, second] += 1
    np.testing.assert_allclose(seen.sum(axis=1) / 4000, 0.25, atol=0.03)
    np.testing.assert_allclose(seen[1] / seen[1].sum(), [0.927536, 0, 0.057971, 0.014493], atol=0.03)


def test_first_picks_explore_in_later_rounds(federation):
    histograms = np.tile([10.0, 10, 10, 0], (6, 1))
    histograms[0] = [10, 10, 10, 9]
    fed = federation(6, script={"label_histogram": histograms})
    fed.run(FedCBS(clients_per_round=1, exploration=0.0), 200)
    without = fed.history.trainings[0] / 200
    fed = federation(6, script={"label_histogram": histograms})
    fed.run(FedCBS(clients_per_round=1, exploration=1e6), 200)
    assert without > 0.9
    assert fed.history.trainings.min() > 15


def test_the_first_round_does_not_explore(federation):
    """ln 1 = 0: whatever λ is, the first pick of round 1 goes by balance alone."""
    histograms = np.tile([100.0, 0, 0, 0], (6, 1))
    histograms[2] = 25
    firsts = set()
    for seed in range(30):
        fed = federation(6, seed=seed, script={"label_histogram": histograms})
        selector = FedCBS(clients_per_round=1, exploration=1e12)
        assert fed.play(selector).trained.tolist() == [2]
        firsts |= set(fed.play(selector).trained.tolist())
    assert len(firsts) > 3


def test_greedy_takes_the_most_balanced_group(federation):
    fed = federation(3, classes=6, script={"label_histogram": EXAMPLE[1:]})
    assert fed.play(FedCBS(clients_per_round=2, mode="greedy", exploration=0.0)).trained.tolist() == [0, 1]
    fed = federation(4, classes=6, script={"label_histogram": EXAMPLE})
    assert fed.play(FedCBS(clients_per_round=1, mode="greedy")).trained.tolist() == [0]


def test_sampled_groups_are_more_balanced_than_random_ones(federation):
    rng = np.random.default_rng(0)
    histograms = np.array([rng.multinomial(100, p) for p in rng.dirichlet(np.full(10, 0.1), 200)])
    fed = federation(200, classes=10, script={"label_histogram": histograms})
    chosen = [imbalance(histograms[round.trained]) for round in fed.run(FedCBS(clients_per_round=10), 30)]
    random = [imbalance(histograms[rng.choice(200, 10, replace=False)]) for _ in range(30)]
    assert np.mean(chosen) < 0.2 * np.mean(random)


def test_histograms_are_asked_for_once(federation):
    fed, selector = federation(10), FedCBS(clients_per_round=3)
    played = fed.run(selector, 3)
    assert [len(round.asks) for round in played] == [1, 0, 0]
    fed.grow([5, 5])
    assert fed.play(selector).asks[0].clients.tolist() == [10, 11]


def test_clients_that_do_not_tell_come_last(federation):
    fed = federation(8)
    played = fed.run(FedCBS(clients_per_round=4), 20, nan={"label_histogram": [0, 1, 2]})
    assert all(set(round.trained) <= {3, 4, 5, 6, 7} for round in played)
    played = fed.run(FedCBS(clients_per_round=6), 5, nan={"label_histogram": [0, 1, 2]})
    assert all({3, 4, 5, 6, 7} < set(round.trained) for round in played)


def test_one_class_means_uniform(federation):
    fed = federation(6, classes=1, sizes=[5] * 6, script={"label_histogram": np.full((6, 1), 5.0)})
    fed.run(FedCBS(clients_per_round=2), 500)
    np.testing.assert_allclose(fed.history.trainings / 500, 1 / 3, atol=0.08)


@pytest.mark.parametrize("length", [1, 5, 4096, 4097, 10_000])
def test_drawing_by_blocks_has_the_right_law(length):
    rng = np.random.default_rng(0)
    likely = np.array([0, length // 2, length - 1])
    log_weights = np.full(length, -np.inf, dtype=np.float32)
    log_weights[likely] = 500 + np.log(np.array([1, 2, 3], dtype=np.float32))
    seen = np.bincount([draw_by_log_weight(log_weights.copy(), rng) for _ in range(3000)], minlength=length)
    expected = np.exp(log_weights.astype(np.float64) - 500)
    np.testing.assert_allclose(seen / 3000, expected / expected.sum(), atol=0.03)


def test_large_groups_do_not_overflow(federation):
    fed = federation(300, classes=10, script={"label_histogram": np.full((300, 10), 7.0)})
    assert len(fed.play(FedCBS(clients_per_round=200)).trained) == 200


def test_bad_options_are_refused(federation):
    with pytest.raises(ConfigError):
        FedCBS(clients_per_round=4, exploration=-1.0).check(federation(10).population)


@pytest.mark.bench
def test_a_hundred_of_a_million_within_a_second(federation):
    fed, selector = federation(1_000_000, classes=10), FedCBS(clients_per_round=100)
    fed.play(selector)
    assert fed.play(selector).seconds < 1
