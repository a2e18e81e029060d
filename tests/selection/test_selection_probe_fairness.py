"""Probe + fairness: the blend, forced turns, exploration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from muster.core.errors import ConfigError
from muster.selection._scaling import min_max
from muster.selection.probe_fairness import NEVER, ProbeFairness, blend, explore_slots
from muster.signals.probe import ProbeNorm

NORMS = np.array([2.0, 5.0, 3.0, 4.0])
COUNTS = np.array([3, 0, 1, 3])
LAST = np.array([9, 0, 4, 7])


def test_worked_example():
    scores = blend(NORMS, COUNTS, LAST, 10, 0.3)
    np.testing.assert_allclose(scores, [0, 1, 0.36, 0.493333], atol=5e-7)
    np.testing.assert_allclose(blend(NORMS, COUNTS, LAST, 10, 0), [0, 1, 1 / 3, 2 / 3])
    np.testing.assert_allclose(blend(NORMS, COUNTS, LAST, 10, 1), [0, 1, 0.422222, 0.088889], atol=5e-7)
    np.testing.assert_array_equal(np.argsort(-scores), [1, 3, 2, 0])
    np.testing.assert_allclose(softmax(scores[[0, 2, 3]] / 0.7), [0.212956, 0.356157, 0.430887], atol=5e-7)


def test_the_sentinel_of_the_released_code_flattens_the_other_waits():
    waits = min_max(10 - np.array([9, NEVER, 4, 7], dtype=float))
    np.testing.assert_allclose(waits, [0, 1, 5e-6, 2e-6], atol=1e-8)


def test_equal_probes_leave_the_decision_to_fairness():
    np.testing.assert_allclose(blend(np.ones(4), COUNTS, LAST, 10, 0.3), [0, 0.3, 0.126667, 0.026667], atol=5e-7)


def test_a_broken_probe_counts_as_the_smallest():
    scores = blend(np.array([np.nan, 5.0, 3.0, np.inf]), np.zeros(4), np.zeros(4), 1, 0.3)
    np.testing.assert_allclose(scores, [0, 0.7, 0, 0])


@pytest.mark.parametrize(
    ("epsilon", "count", "nearest", "ceil"),
    [(0.05, 10, 0, 1), (0.05, 30, 2, 2), (0.1, 20, 2, 2), (1.0, 5, 4, 4), (0.5, 1, 0, 0), (0.0, 9, 0, 0)],
)
def test_explore_slots(epsilon, count, nearest, ceil):
    assert explore_slots(epsilon, count) == nearest
    assert explore_slots(epsilon, count, "ceil") == ceil


def test_half_is_rounded_to_the_even_neighbour():
    assert explore_slots(0.05, 10) == 0
    assert explore_slots(0.5, 3) == 2


clients = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50), st.integers(0, 99)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(clients, st.floats(0, 1))
def test_scores_lie_in_the_unit_interval_and_grow_with_need(rows, beta):
    norms, counts, last = (np.array(column) for column in zip(*rows, strict=True))
    scores = blend(norms, counts, last, 100, beta)
    assert ((scores >= 0) & (scores <= 1 + 1e-12)).all()
    most, least = np.lexsort((last, counts))[[0, -1]]
    if norms[most] >= norms[least] and last[most] <= last[least]:
        assert scores[most] >= scores[least] - 1e-9


def test_the_pool_is_twice_the_cohort_and_the_strongest_probe_wins(federation):
    fed = federation(40, script={"probe_norm": np.arange(40.0)})
    played = fed.play(ProbeFairness(clients_per_round=5, beta=0.0))
    assert len(played.asks[0].clients) == 10
    np.testing.assert_array_equal(played.trained, played.asks[0].clients[-5:])


def test_who_waits_long_is_forced_in(federation):
    fed = federation(6, rounds=40, script={"probe_norm": np.arange(6.0)})
    selector = ProbeFairness(clients_per_round=3, beta=0.0)
    rounds = [set(played.trained.tolist()) for played in fed.run(selector, 40)]
    assert rounds[0] == rounds[8] == {3, 4, 5}
    assert rounds[9] == {0, 1, 2}, "ten rounds without a turn: a quarter of the forty"


def test_participations_and_last_rounds_are_counted(federation):
    fed, selector = federation(9), ProbeFairness(clients_per_round=3)
    fed.run(selector, 20)
    np.testing.assert_array_equal(selector.counts, fed.history.trainings)
    np.testing.assert_array_equal(selector.last, fed.history.last_round + 1)


def test_starved_clients_outside_the_pool(federation):
    fed = federation(30, rounds=100, script={"probe_norm": np.arange(30.0)})
    selector = ProbeFairness(clients_per_round=3, pool_factor=1.0, gap=1, force_scope="all")
    fed.run(selector, 10)
    assert (fed.history.trainings == 1).all(), "the longest wait first gives everybody one turn"


def test_never_means_starved_from_the_first_round_and_the_lot_decides(federation):
    counts = np.zeros(12)
    for seed in range(400):
        fed = federation(12, rounds=100, script={"probe_norm": np.arange(12.0)}, seed=seed)
        selector = ProbeFairness(clients_per_round=3, pool_factor=4.0, beta=0.0, init_last="never")
        counts[fed.play(selector).trained] += 1
    # A quarter each, whatever the probe says: everybody has waited for ever. Four standard errors.
    assert np.abs(counts / 400 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 400)


def test_round_one_has_no_favourites_among_a_hundred(federation):
    """With the settings of the paper: a fifth of 100 clients, all forced; every tenth of the ids alike."""
    counts = np.zeros(100)
    for seed in range(150):
        fed = federation(100, rounds=400, seed=seed)
        counts[fed.play(ProbeFairness(clients_per_round=20, init_last="never")).trained] += 1
    deciles = counts.reshape(10, 10).mean(axis=1) / 150
    assert np.abs(deciles - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / 1500)
    joined = ProbeFairness(clients_per_round=3, pool_factor=4.0, beta=0.0)
    assert federation(12, script={"probe_norm": np.arange(12.0)}).play(joined).trained.tolist() == [9, 10, 11]


def test_a_newcomer_has_not_waited_yet(federation):
    fed, selector = federation(6, rounds=8), ProbeFairness(clients_per_round=3)
    fed.run(selector, 5)
    fed.grow([40])
    fed.play(selector)
    assert selector.last[6] in (5, 6)


def test_exploration_follows_the_softmax(federation):
    script = {"probe_norm": np.array([0.0, 1.0, 2.0, 10.0])}
    picked = np.zeros(4)
    for seed in range(400):
        selector = ProbeFairness(clients_per_round=2, beta=0.0, epsilon=0.5, temperature=0.2)
        picked[federation(4, seed=seed, script=script).play(selector).trained] += 1
    assert picked[3] == 400
    expected = softmax(np.array([0, 0.1, 0.2]) / 0.2) * 400
    assert np.abs(picked[:3] - expected).max() < 4 * np.sqrt(100)


def test_equal_scores_are_broken_at_random(federation):
    script = {"probe_norm": np.ones(8)}
    firsts = {
        tuple(federation(8, seed=s, script=script).play(ProbeFairness(2, pool_factor=4.0)).trained)
        for s in range(20)
    }
    assert len(firsts) > 5


def test_probe_options_reach_the_signal():
    (signal,) = ProbeFairness(4, probe_batches=3, probe_steps=2, credit="epoch").needs()
    assert isinstance(signal, ProbeNorm)
    assert (signal.batches, signal.steps, signal.credit) == (3, 2, "epoch")


@pytest.mark.parametrize("options", [{}, {"epsilon": 0.5, "force_scope": "all", "gap": 2}, {"init_last": "never"}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: ProbeFairness(clients_per_round=4, **options), 4)


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 1.5},
        {"epsilon": -0.1},
        {"temperature": 0.0},
        {"pool_factor": 0.5},
        {"gap": 0},
        {"probe_batches": 0},
        {"clients_per_round": 99},
    ],
)
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        ProbeFairness(**({"clients_per_round": 4} | options)).check(federation(12).population)


@pytest.mark.bench
def test_a_hundred_of_a_million_in_a_second(federation):
    fed = federation(1_000_000)
    assert fed.play(ProbeFairness(100, force_scope="all")).seconds < 1
