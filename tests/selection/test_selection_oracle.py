"""The oracle of label histograms."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection.fedcbs import imbalance
from muster.selection.oracle import Oracle, complete


def test_contract(keeps_contract):
    keeps_contract(lambda: Oracle(clients_per_round=4), 4)


def test_single_class_clients_are_completed_to_all_classes(federation):
    fed = federation(20, script={"label_histogram": 10 * np.eye(4)[np.arange(20) % 4]})
    for played in fed.run(Oracle(clients_per_round=4), 10):
        assert sorted(played.trained % 4) == [0, 1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(2, 5), st.integers(0, 1000))
def test_every_step_is_the_best_one(clients, classes, seed):
    rng = np.random.default_rng(seed)
    histograms = rng.integers(0, 30, size=(clients, classes)) + 1
    first, count = int(rng.integers(clients)), int(rng.integers(1, clients + 1))
    chosen = complete(histograms, first, count, np.zeros(clients, dtype=np.int64), rng)
    assert chosen[0] == first
    assert len(set(chosen)) == count
    for place in range(1, count):
        left = np.setdiff1d(np.arange(clients), chosen[:place])
        best = min(imbalance(histograms[[*chosen[:place], k]]) for k in left)
        assert imbalance(histograms[chosen[: place + 1]]) <= best + 1e-6


def test_ties_go_to_those_who_trained_least(federation):
    histograms = 10 * np.eye(2)[[0, 1, 1, 1]]
    rng = np.random.default_rng(0)
    assert complete(histograms, 0, 2, np.array([0, 3, 1, 2]), rng).tolist() == [0, 2]
    assert {complete(histograms, 0, 2, np.array([0, 1, 1, 2]), rng)[1] for _ in range(30)} == {1, 2}
    fed = federation(12, classes=2, script={"label_histogram": 10 * np.eye(2)[np.arange(12) % 2]})
    fed.run(Oracle(clients_per_round=4), 30)
    assert fed.history.trainings.min() >= 5


def test_histograms_are_asked_for_once(federation):
    fed, selector = federation(10), Oracle(clients_per_round=3)
    played = fed.run(selector, 3)
    assert [len(round.asks) for round in played] == [1, 0, 0]
    fed.grow([5])
    assert fed.play(selector).asks[0].clients.tolist() == [10]


def test_clients_that_do_not_tell_come_last(federation):
    fed = federation(8)
    for played in fed.run(Oracle(clients_per_round=4), 10, nan={"label_histogram": [0, 1]}):
        assert not {0, 1} & set(played.trained)
    for played in fed.run(Oracle(clients_per_round=7), 5, nan={"label_histogram": [0, 1]}):
        assert len({0, 1} & set(played.trained)) == 1
