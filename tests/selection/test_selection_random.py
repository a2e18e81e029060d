"""Random selection."""

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.selection.random import RandomSelection


def test_contract(keeps_contract):
    keeps_contract(lambda: RandomSelection(clients_per_round=4), 4)


def test_every_client_is_included_with_the_same_probability(federation):
    fed, selector = federation(10, seed=5), RandomSelection(clients_per_round=3)
    fed.run(selector, 20_000)
    assert np.abs(fed.history.trainings - 6000).max() <= 259
    assert fed.history.trainings.sum() == 60_000


def test_asking_for_everybody_returns_everybody_in_order(federation):
    assert federation(10).play(RandomSelection(clients_per_round=10)).trained.tolist() == list(range(10))


def test_fewer_available_than_asked(federation):
    played = federation(10).play(RandomSelection(clients_per_round=5), available=[7, 2, 4])
    assert played.trained.tolist() == [2, 4, 7]


def test_rounds_differ_and_seeds_differ(federation):
    selector = RandomSelection(clients_per_round=10)
    one, other = (federation(1000, seed=seed).run(selector, 2) for seed in (1, 2))
    assert one[0].trained.tolist() != one[1].trained.tolist()
    assert one[0].trained.tolist() != other[0].trained.tolist()


@pytest.mark.parametrize("count", [0, 11])
def test_a_count_that_cannot_be_met_is_refused(federation, count):
    with pytest.raises(ConfigError, match=f"clients_per_round is {count}"):
        RandomSelection(clients_per_round=count).check(federation(10).population)
