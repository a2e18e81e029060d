"""High loss, in both readings."""

import pytest

from muster.selection.high_loss import HighLoss


@pytest.mark.parametrize("signal", ["loss", "last_train_loss"])
def test_contract(keeps_contract, signal):
    keeps_contract(lambda: HighLoss(clients_per_round=4, signal=signal), 4)


def test_worked_example(federation):
    fed = federation(4, script={"loss": [0.9, 2.1, 2.1, 0.2]})
    played = fed.play(HighLoss(clients_per_round=2))
    assert played.asks[0].clients.tolist() == [0, 1, 2, 3]
    assert played.trained.tolist() == [1, 2]


def test_ties_go_by_lot(federation):
    fed = federation(4, script={"loss": [0.9, 2.1, 2.1, 0.2]})
    assert {int(played.trained[0]) for played in fed.run(HighLoss(clients_per_round=1), 30)} == {1, 2}


def test_missing_losses_come_last(federation):
    fed = federation(4, script={"loss": [0.9, 2.1, 2.1, 0.2]})
    assert fed.play(HighLoss(2), nan={"loss": [1]}, drop=[2]).trained.tolist() == [0, 3]


def test_the_stale_reading_tries_everybody_first(federation):
    fed = federation(4, script={"train_loss": [0.9, 2.1, 2.2, 0.2]})
    selector = HighLoss(2, signal="last_train_loss")
    first, second, third = (played.trained.tolist() for played in fed.run(selector, 3))
    assert sorted(first + second) == [0, 1, 2, 3]
    assert third == [1, 2]
