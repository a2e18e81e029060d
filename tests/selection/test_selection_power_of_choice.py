"""Power-of-Choice in its three variants."""

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.selection.high_loss import HighLoss
from muster.selection.power_of_choice import PowerOfChoice


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d", "rpow-d"])
def test_contract(keeps_contract, variant):
    keeps_contract(lambda: PowerOfChoice(clients_per_round=3, variant=variant), 3)


def test_worked_example(federation):
    """Candidates 0, 2 and 3 (1 is out of reach), with losses 0.5, 1.7 and 0.9."""
    fed = federation(sizes=[40, 30, 20, 10], script={"loss": [0.5, 9.0, 1.7, 0.9]})
    played = fed.play(PowerOfChoice(clients_per_round=2, d=3), available=[0, 2, 3])
    assert played.asks[0].clients.tolist() == [0, 2, 3]
    assert played.trained.tolist() == [2, 3]


def test_worked_example_of_rpow_d(federation):
    fed = federation(4)
    fed.history.reported("train_loss", np.array([2, 3]), np.array([0.3, 2.0]))
    played = fed.play(PowerOfChoice(clients_per_round=2, variant="rpow-d", d=4))
    assert not played.asks
    assert played.trained.tolist() == [0, 1]


def test_candidates_are_drawn_by_size(federation):
    fed = federation(sizes=[10**9] * 4 + [1] * 16)
    played = fed.play(PowerOfChoice(clients_per_round=2))
    assert played.asks[0].clients.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("d", "candidates"), [(None, 6), (9, 9), (1, 3)])
def test_number_of_candidates(federation, d, candidates):
    played = federation(20).play(PowerOfChoice(clients_per_round=3, d=d))
    assert len(played.asks[0].clients) == candidates


def test_ties_and_missing_losses(federation):
    fed = federation(5, script={"loss": [1.0, 3.0, 3.0, 3.0, 5.0]})
    selector = PowerOfChoice(clients_per_round=2, d=5)
    tied = [tuple(fed.play(selector, nan={"loss": [4]}).trained.tolist()) for _ in range(40)]
    assert set(tied) == {(1, 2), (1, 3), (2, 3)}
    assert fed.play(selector, drop=[4, 3, 2]).trained.tolist() == [0, 1]
    assert {fed.play(selector, nan={"loss": [1, 2, 3, 4]}).trained[0] for _ in range(20)} == {0}


def test_a_diverged_model_makes_the_choice_uniform(federation):
    fed = federation(4, sizes=[10] * 4, seed=3)
    fed.run(PowerOfChoice(clients_per_round=2, d=4), 400, nan={"loss": range(4)})
    assert np.abs(fed.history.trainings - 200).max() < 60


def test_rpow_d_learns_from_trainings_and_breaks_ties_by_lot(federation):
    fed = federation(6, sizes=[10] * 6, script={"train_loss": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]})
    selector = PowerOfChoice(clients_per_round=2, variant="rpow-d", d=6)
    first = fed.run(selector, 3)
    assert np.concatenate([played.trained for played in first]).size == 6
    assert (fed.history.trainings == 1).all()
    assert fed.play(selector).trained.tolist() == [0, 1]
    starts = {tuple(federation(6, seed=seed).play(PowerOfChoice(2, "rpow-d", 6)).trained) for seed in range(8)}
    assert len(starts) > 1


@pytest.mark.parametrize("make", [lambda: PowerOfChoice(4, "rpow-d", 20), lambda: HighLoss(4, "last_train_loss")])
def test_clients_that_fail_do_not_take_all_places(federation, make):
    """Four clients never answer; four others train, but their loss is not a number."""
    fed, selector = federation(20, script={"train_loss": lambda clients, round: 0.9**round + 0 * clients}), make()
    fed.run(selector, 60, drop=range(4), nan={"train_loss": range(4, 8)})
    assert (fed.history.failures[:4] >= 1).all()
    assert fed.history.failures[:4].max() <= fed.history.trainings.mean() + 1
    assert (fed.history.trainings[4:8] == 1).all()
    assert (fed.history.trainings[8:] >= 5).all()


def test_a_client_that_failed_once_gets_another_turn(federation):
    fed = federation(6, sizes=[10] * 6, script={"train_loss": lambda clients, round: 0.9**round + 0 * clients})
    selector = PowerOfChoice(clients_per_round=2, variant="rpow-d", d=6)
    fed.run(selector, 3, drop=[0])
    fed.run(selector, 12)
    assert fed.history.failures[0] == 1
    assert fed.history.trainings[0] >= 2


def test_cost(federation):
    full, cheap, stale = (PowerOfChoice(2, variant) for variant in ("pow-d", "cpow-d", "rpow-d"))
    assert full.needs()[0].samples(500, 64) == 500
    assert cheap.needs()[0].samples(500, 64) == 64
    assert PowerOfChoice(2, "cpow-d", batch=16).needs()[0].samples(500, 64) == 16
    assert stale.needs()[0].reportable


@pytest.mark.parametrize("options", [{"d": 0}, {"d": 11}, {"batch": 0}])
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match="power-of-choice"):
        PowerOfChoice(clients_per_round=2, **options).check(federation(10).population)


def test_all_clients_can_be_candidates(federation):
    played = federation(12).play(PowerOfChoice(3, d="all"))
    assert played.asks[0].clients.tolist() == list(range(12))
    assert len(played.trained) == 3
