"""FedPNS."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.fedpns import FedPNS, expectations, opposed, shifted

GRADIENTS = np.array([[1, 0], [0.9, 0.1], [1, 0.2], [-1, 0.5]])


@pytest.mark.parametrize(
    "options", [{}, {"aggregate": "all", "min_kept": 1, "cap": 1.0}, {"equal_weights": False}]
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: FedPNS(clients_per_round=4, **options), 4)


def test_worked_example():
    all_four, without = expectations(GRADIENTS @ GRADIENTS.T)
    assert all_four == pytest.approx(1.0625)
    np.testing.assert_allclose(without, [0.4833, 0.4967, 0.39, 2.8333], atol=5e-5)
    three, without = expectations(GRADIENTS[:3] @ GRADIENTS[:3].T)
    assert three == pytest.approx(2.8333, abs=5e-5)
    np.testing.assert_allclose(without, [1.85, 2.02, 1.81], atol=5e-3)
    assert opposed(GRADIENTS, 1).tolist() == [3]


def test_worked_example_of_probabilities():
    result = shifted(np.full(10, 0.1), np.array([4]), np.array([min((0.25 + 0.7) ** 2, 0.99)]))
    assert result[4] == pytest.approx(0.00975)
    assert np.delete(result, 4) == pytest.approx(0.110028, abs=5e-7)
    assert result.sum() == pytest.approx(1.0)


def textbook(gradients, least):
    def agreement(kept):
        mean = gradients[kept].mean(axis=0)
        return sum(gradients[k] @ mean for k in kept)

    kept, removed = list(range(len(gradients))), []
    while len(kept) > least:
        worst = max(kept, key=lambda k: agreement([j for j in kept if j != k]))
        if agreement([j for j in kept if j != worst]) <= agreement(kept):
            break
        kept.remove(worst)
        removed.append(worst)
    return removed


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_loop_equals_the_textbook(clients, least, seed):
    gradients = np.random.default_rng(seed).normal(size=(clients, 4))
    assert opposed(gradients, least).tolist() == textbook(gradients, least)


def opposing(clients, round):
    rows = np.ones((len(clients), 31))
    rows[clients == 3] *= -1
    return rows


def test_an_update_against_the_others_is_left_out(federation):
    played = federation(5, script={"mean_gradient": opposing}).play(FedPNS(clients_per_round=5))
    assert played.used[0].tolist() == [0, 1, 2, 4]
    everything = federation(5, script={"mean_gradient": opposing})
    assert everything.play(FedPNS(clients_per_round=5, aggregate="all")).used[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("aggregate", ["kept", "all"])
def test_and_its_client_comes_less_often(federation, aggregate):
    fed = federation(10, script={"mean_gradient": opposing})
    selector = FedPNS(clients_per_round=5, aggregate=aggregate)
    fed.run(selector, 100)
    saved = selector.state_dict()
    assert saved["_flags"].tolist() == [saved["_flags"][3] if k == 3 else 0 for k in range(10)]
    assert saved["_selections"][3] < 0.2 * np.delete(saved["_selections"], 3).min()
    assert saved["_probabilities"].sum() == pytest.approx(1.0)


def test_worked_example_of_probabilities_over_rounds(federation):
    """Flagged in one of four selections: δ = 0.1 · 0.95² = 0.09025."""
    fed, selector = federation(10, script={"mean_gradient": np.ones((10, 31))}), FedPNS(clients_per_round=10)
    fed.run(selector, 3)
    fed.script["mean_gradient"] = opposing
    fed.play(selector)
    expected = [0.00975 if client == 3 else 0.110028 for client in range(10)]
    np.testing.assert_allclose(selector.state_dict()["_probabilities"], expected, atol=5e-7)


def test_at_least_so_many_updates_are_kept(federation):
    def quarrel(clients, round):
        rows = np.zeros((len(clients), 31))
        rows[:, 0] = np.where(clients < 5, -1.0, 2.0)
        return rows

    fed = federation(10, script={"mean_gradient": quarrel})
    assert len(fed.play(FedPNS(clients_per_round=10)).used[0]) == 7
    assert fed.play(FedPNS(clients_per_round=10, min_kept=1)).used[0].tolist() == [5, 6, 7, 8, 9]


def test_one_client_is_never_flagged(federation):
    fed, selector = federation(4), FedPNS(clients_per_round=1)
    fed.run(selector, 10)
    assert not selector.state_dict()["_flags"].any()


def test_updates_that_are_not_numbers_are_not_judged(federation):
    fed = federation(5, script={"mean_gradient": opposing})
    selector = FedPNS(clients_per_round=5)
    played = fed.play(selector, nan={"mean_gradient": [3]})
    assert played.used[0].tolist() == [0, 1, 2, 3, 4]
    assert not selector.state_dict()["_flags"].any()


def test_newcomers_are_as_likely_as_the_average(federation):
    fed, selector = federation(10, script={"mean_gradient": opposing}), FedPNS(clients_per_round=5)
    fed.run(selector, 20)
    fed.grow([10] * 10)
    fed.script["mean_gradient"] = np.ones((20, 31))
    fed.play(selector)
    probabilities = selector.state_dict()["_probabilities"]
    assert probabilities[10:].tolist() == [0.05] * 10
    assert probabilities.sum() == pytest.approx(1.0)


def test_nobody_left_to_give_to():
    assert shifted(np.array([0.5, 0.5]), np.array([0, 1]), np.full(2, 0.9)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("options", [{"min_kept": 0}, {"min_kept": 5}, {"cap": 0.0}, {"alpha": -1.0}])
def test_bad_options_are_refused(federation, options):
    with pytest.raises(ConfigError):
        FedPNS(**{"clients_per_round": 4, **options}).check(federation(10).population)
