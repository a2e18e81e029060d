"""Dirichlet-skewed participation."""

import math

import numpy as np
import pytest
from scipy import stats

from muster.core.errors import ConfigError
from muster.selection.dirichlet_participation import DirichletParticipation, log_gammas


@pytest.mark.parametrize(
    ("gamma", "redraw"), [(0.01, "never"), (1.0, "never"), (0.5, "every_round"), (math.inf, "never")]
)
def test_contract(keeps_contract, gamma, redraw):
    keeps_contract(lambda: DirichletParticipation(clients_per_round=4, gamma=gamma, redraw=redraw), 4)


def test_worked_example(federation):
    rounds = 8_000
    fed, selector = federation(3, seed=4), DirichletParticipation(clients_per_round=2)
    selector.log_weights = np.log([0.7, 0.2, 0.1])
    fed.run(selector, rounds)
    expected = np.array([0.952778, 0.688889, 0.358333])
    spread = np.sqrt(expected * (1 - expected) / rounds)
    assert (np.abs(fed.history.trainings / rounds - expected) < 4 * spread).all()


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_normalised_gammas_have_the_law_of_a_dirichlet(gamma):
    rng = np.random.default_rng(0)
    draws = np.exp([log_gammas(gamma, 4, rng) for _ in range(4000)])
    shares = draws[:, 0] / draws.sum(axis=1)
    assert stats.kstest(shares, stats.beta(gamma, 3 * gamma).cdf).pvalue > 1e-3


def test_small_gammas_do_not_underflow():
    assert np.isfinite(log_gammas(1e-3, 1000, np.random.default_rng(0))).all()


def test_probabilities_stay_or_change(federation):
    never, always = (DirichletParticipation(3, redraw=redraw) for redraw in ("never", "every_round"))
    fed = federation(8)
    fed.play(never)
    before = never.log_weights.copy()
    fed.play(never)
    np.testing.assert_array_equal(never.log_weights, before)
    fed.play(always)
    before = always.log_weights.copy()
    fed.play(always)
    assert (always.log_weights != before).all()


def test_participation_is_skewed_only_when_probabilities_stay(federation):
    def gini_like(redraw):
        fed = federation(20, seed=6)
        fed.run(DirichletParticipation(2, gamma=0.1, redraw=redraw), 600)
        return np.ptp(fed.history.trainings)

    assert gini_like("never") > 5 * gini_like("every_round")


def test_newcomers_get_a_weight_and_the_others_keep_theirs(federation):
    fed, selector = federation(5), DirichletParticipation(2)
    fed.play(selector)
    before = selector.log_weights.copy()
    fed.grow([10, 10])
    fed.play(selector)
    assert len(selector.log_weights) == 7
    np.testing.assert_array_equal(selector.log_weights[:5], before)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan])
def test_a_concentration_must_be_positive(federation, gamma):
    with pytest.raises(ConfigError, match="gamma"):
        DirichletParticipation(2, gamma=gamma).check(federation(5).population)
