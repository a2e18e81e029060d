"""Size-weighted selection, with and without replacement."""

import numpy as np
import pytest

from muster.selection.size_weighted import SizeWeighted

ROUNDS = 8_000


@pytest.mark.parametrize("replace", [False, True])
def test_contract(keeps_contract, replace):
    keeps_contract(lambda: SizeWeighted(clients_per_round=4, replace=replace), 4)


def test_inclusion_probabilities_without_replacement(federation):
    fed = federation(sizes=[50, 30, 20], seed=1)
    fed.run(SizeWeighted(clients_per_round=2), ROUNDS)
    expected = np.array([0.839286, 0.675, 0.485714])
    spread = np.sqrt(expected * (1 - expected) / ROUNDS)
    assert (np.abs(fed.history.trainings / ROUNDS - expected) < 4 * spread).all()


def test_the_expected_probabilities_follow_from_successive_draws():
    p = np.array([0.5, 0.3, 0.2])
    included = [p[k] + sum(p[j] * p[k] / (1 - p[j]) for j in range(3) if j != k) for k in range(3)]
    np.testing.assert_allclose(included, [0.839286, 0.675, 0.485714], atol=5e-7)


def test_expected_multiplicities_with_replacement(federation):
    fed = federation(sizes=[50, 30, 20], seed=2)
    totals = np.zeros(3)
    for played in fed.run(SizeWeighted(clients_per_round=2, replace=True), ROUNDS):
        (train,) = played.trains
        assert train.multiplicity.sum() == 2
        totals[train.clients] += train.multiplicity
    np.testing.assert_allclose(totals / ROUNDS, [1.0, 0.6, 0.4], atol=0.03)


def test_one_client_with_nearly_all_samples_counts_several_times(federation):
    (train,) = federation(sizes=[10**9, 1, 1]).play(SizeWeighted(clients_per_round=3, replace=True)).trains
    assert train.clients.tolist() == [0]
    assert train.multiplicity.tolist() == [3]


def test_probabilities_are_those_of_the_available_clients(federation):
    fed = federation(sizes=[10**9, 30, 20, 50])
    for played in fed.run(SizeWeighted(clients_per_round=2), 20, available=[1, 2, 3]):
        assert set(played.trained.tolist()) < {1, 2, 3}
