"""The convex programme over known tables: worked examples, optimality, and the greedy variant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from muster.core.errors import ConfigError
from muster.selection.feddiverse_qp import FedDiverseQP, greedy, weights

A, B = [90, 10, 10, 90], [10, 90, 90, 10]
C, D = [90, 90, 10, 10], [10, 10, 90, 90]


def variance(omega, matrices):
    return float(np.var(omega @ np.array(matrices, dtype=float)))


def test_worked_examples():
    np.testing.assert_allclose(weights(np.array([A, B, C], dtype=float)), [0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(weights(np.array([A, B, C, D], dtype=float)), [0.25] * 4, atol=1e-9)


def test_a_balanced_client_takes_everything_and_balanced_clients_share():
    np.testing.assert_allclose(weights(np.array([A, [50] * 4, C], dtype=float)), [0, 1, 0], atol=1e-5)
    np.testing.assert_array_equal(weights(np.full((5, 4), 30.0)), np.full(5, 0.2))


tables = st.lists(st.lists(st.integers(0, 100), min_size=4, max_size=4), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(tables)
def test_no_feasible_direction_lowers_the_variance(rows):
    matrices = np.array(rows, dtype=float)
    omega = weights(matrices)
    assert omega.min() >= 0
    assert omega.sum() == pytest.approx(1)
    deviations = matrices - matrices.mean(axis=1, keepdims=True)
    products = deviations @ deviations.T
    ridge = 1e-6 * np.trace(products) / len(rows)
    gradient = products @ omega + ridge * omega
    # At the optimum no client has a smaller partial derivative than those with weight (Karush, Kuhn, Tucker).
    scale = max(np.trace(products), 1.0)
    assert (gradient >= gradient @ omega - 1e-9 * scale).all()


def test_agrees_with_a_general_solver():
    matrices = np.random.default_rng(0).integers(0, 50, (8, 6)).astype(float)
    found = minimize(  # type: ignore[call-overload]
        variance,
        np.full(8, 1 / 8),
        args=(matrices,),
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 8,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert variance(weights(matrices), matrices) <= found.fun + 1e-4


def test_greedy_completes_what_the_first_lacks():
    matrices = np.array([A, A, B, C, D], dtype=float)
    for seed in range(10):
        first, second = greedy(matrices, 2, np.random.default_rng(seed))
        assert second in {0: {2}, 1: {2}, 2: {0, 1}, 3: {4}, 4: {3}}[first]


def test_greedy_equals_trying_all():
    matrices = np.random.default_rng(1).integers(0, 60, (9, 6)).astype(float)
    picked = greedy(matrices, 5, np.random.default_rng(2)).tolist()
    chosen = picked[:1]
    while len(chosen) < 5:
        left = [k for k in range(9) if k not in chosen]
        chosen.append(min(left, key=lambda k: np.var(matrices[[*chosen, k]].sum(axis=0))))
    assert picked == chosen


def federation_of(federation, rows):
    return federation(len(rows), classes=2, script={"interaction_matrix": np.array(rows, dtype=float)})


def test_draws_with_the_programmes_probabilities(federation):
    fed = federation_of(federation, [A, B, C])
    fed.run(FedDiverseQP(clients_per_round=1), 400)
    assert fed.history.trainings[2] == 0
    assert abs(fed.history.trainings[0] - 200) < 4 * np.sqrt(100)


def test_sparse_weights_are_filled_up_uniformly(federation):
    fed = federation_of(federation, [A, B, C, C])
    rounds = fed.run(FedDiverseQP(clients_per_round=3), 30)
    assert all({0, 1} < set(played.trained.tolist()) for played in rounds)
    assert fed.history.trainings[2:].min() > 5


def test_a_floor_gives_everybody_a_chance(federation):
    selector = FedDiverseQP(clients_per_round=1, floor=0.3)
    federation_of(federation, [A, B, C]).play(selector)
    np.testing.assert_allclose(selector.omega, [0.45, 0.45, 0.1], atol=1e-5)


def test_tables_are_asked_once_and_again_from_those_who_did_not_answer(federation):
    fed, selector = federation_of(federation, [A, B, C]), FedDiverseQP(clients_per_round=1)
    fed.play(selector, drop=[1])
    np.testing.assert_array_equal(selector.omega > 0.4, [True, False, True])
    assert fed.play(selector).asks[0].clients.tolist() == [1]
    assert not fed.play(selector).asks
    np.testing.assert_allclose(selector.omega, [0.5, 0.5, 0], atol=1e-6)


@pytest.mark.parametrize("rule", ["programme", "greedy"])
def test_who_has_not_told_only_fills_up(federation, rule):
    selector = FedDiverseQP(clients_per_round=3, rule=rule)
    played = federation_of(federation, [A, B, C, D]).play(selector, drop=[2, 3])
    assert {0, 1} < set(played.trained.tolist())
    assert len(played.trained) == 3


@pytest.mark.parametrize("rule", ["programme", "greedy"])
def test_contract(keeps_contract, rule):
    keeps_contract(lambda: FedDiverseQP(clients_per_round=4, rule=rule, floor=0.05), 4)


@pytest.mark.parametrize("options", [{"floor": 2.0}, {"clients_per_round": 0}])
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        FedDiverseQP(**({"clients_per_round": 4} | options)).check(federation(12).population)


def test_refuses_what_would_take_hours_and_what_has_no_attributes(federation):
    large = federation(5000).population
    with pytest.raises(ConfigError, match="too long"):
        FedDiverseQP(4).check(large)
    FedDiverseQP(4, rule="greedy").check(large)
    (signal,) = FedDiverseQP(4).needs()
    assert "no attributes" in signal.unavailable(federation(12, attributes=None).population)


def test_pretraining_is_fedavg_with_everybody(federation):
    first, second, third = federation(8).run(FedDiverseQP(clients_per_round=3, pretraining_rounds=2), 3)
    assert [len(played.trained) for played in (first, second, third)] == [8, 8, 3]
    assert first.trains[0].fedavg
    assert not third.trains[0].fedavg
    assert not first.asks
