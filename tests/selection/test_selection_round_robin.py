"""Round robin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection.round_robin import RoundRobin
from muster.server.testing import FakeFederation


def test_contract(keeps_contract):
    keeps_contract(lambda: RoundRobin(clients_per_round=5), 5)


def test_worked_example(federation):
    rounds = federation(5).run(selector := RoundRobin(clients_per_round=2, order="id"), 5)
    assert [set(played.trained.tolist()) for played in rounds] == [{0, 1}, {2, 3}, {4, 0}, {1, 2}, {3, 4}]
    assert selector.chosen.tolist() == [2] * 5


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 50))
def test_counts_never_differ_by_more_than_one(clients, count, seed):
    selector = RoundRobin(clients_per_round=min(count, clients))
    federation = FakeFederation(clients, seed=seed)
    for _ in range(15):
        assert len(federation.play(selector).trained) == min(count, clients)
        assert np.ptp(selector.chosen) <= 1


def test_the_rule_holds_among_the_available(federation):
    fed, selector = federation(6), RoundRobin(clients_per_round=2, order="id")
    for _ in range(3):
        assert set(fed.play(selector, available=[1, 3, 4, 5]).trained.tolist()) <= {1, 3, 4, 5}
    assert selector.chosen.tolist() == [0, 2, 0, 2, 1, 1]
    assert fed.play(selector).trained.tolist() == [0, 2]


def test_newcomers_do_not_take_the_next_rounds_for_themselves(federation):
    fed, selector = federation(4), RoundRobin(clients_per_round=2, order="id")
    fed.run(selector, 6)
    fed.grow([10, 10])
    fed.play(selector)
    assert selector.chosen.tolist() == [4, 4, 3, 3, 3, 3]


def test_newcomers_may_start_at_zero(federation):
    fed, selector = federation(4), RoundRobin(clients_per_round=2, order="id", newcomer="zero")
    fed.run(selector, 6)
    fed.grow([10, 10])
    assert [fed.play(selector).trained.tolist() for _ in range(3)] == [[4, 5]] * 3


def test_a_client_that_fails_has_had_its_turn(federation):
    fed, selector = federation(4), RoundRobin(clients_per_round=2, order="id")
    fed.play(selector, drop=[0])
    assert fed.play(selector).trained.tolist() == [2, 3]
