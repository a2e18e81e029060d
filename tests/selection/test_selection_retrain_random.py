"""Terraform's control: the same number of clients trains again, but who is chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.selection.base import selectors
from muster.selection.retrain_random import RetrainRandom
from muster.selection.terraform import Terraform

#: Whom Terraform trains again is plain: clients 8 to 11.
MAGNITUDES = [0.1, 0.2, 0.3, 0.4, 1, 1.1, 1.2, 1.3, 3, 3.2, 3.4, 3.6]


def again(federation, selector, seed):
    """Who trains in the second iteration of a round in which all twelve clients begin."""
    fed = federation(12, sizes=[50] * 12, script={"final_layer_norm": MAGNITUDES}, seed=seed)
    return [train.clients.tolist() for train in fed.play(selector).trains]


def test_as_many_as_terraform_train_again(federation):
    for seed in range(10):
        terraform = again(federation, Terraform(clients_per_round=12), seed)
        control = again(federation, RetrainRandom(clients_per_round=12), seed)
        assert control[0] == terraform[0], "the same cohort"
        assert len(control[1]) == len(terraform[1]) == 4


def test_who_trains_again_is_chance_and_not_magnitude_or_id(federation):
    draws = [again(federation, RetrainRandom(clients_per_round=12), seed)[1] for seed in range(600)]
    shares = np.bincount(np.concatenate(draws), minlength=12) / len(draws)
    # 4 of 12 each time: the standard error of a share is 0.019.
    np.testing.assert_allclose(shares, 1 / 3, atol=0.08)


def test_only_clients_that_have_just_trained_train_again(federation):
    fed = federation(64, sizes=[30] * 64)
    for played in fed.run(RetrainRandom(clients_per_round=32, min_clients=2), 10):
        assert len(played.trains) > 1
        assert all(set(b.clients) < set(a.clients) for a, b in itertools.pairwise(played.trains))


def test_five_equal_clients_train_once_as_with_random_selection(federation):
    fed = federation(50, sizes=[30] * 50)
    assert all(len(played.trains) == 1 for played in fed.run(RetrainRandom(clients_per_round=5), 10))


def test_clients_that_do_not_answer_are_not_drawn_again(federation):
    played = federation(16, sizes=[30] * 16).play(RetrainRandom(clients_per_round=16), drop=range(4))
    assert all(train.clients.min() >= 4 for train in played.trains[1:])


def test_has_terraforms_options_and_refusals(federation):
    selector = selectors.build("retrain-random", {"clients_per_round": 8, "min_clients": 2, "signal": "loss"})
    assert [signal.name for signal in selector.needs()] == ["train_loss"]
    with pytest.raises(ConfigError, match="min_clients"):
        RetrainRandom(clients_per_round=4, min_clients=0).check(federation(12).population)


def test_contract(keeps_contract):
    keeps_contract(lambda: RetrainRandom(clients_per_round=8), 8)
