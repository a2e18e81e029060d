"""The sliding window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.selection.sliding_window import SlidingWindow
from muster.server.testing import FakeFederation


@pytest.mark.parametrize("pad", ["wrap", "short", "carry"])
def test_contract(keeps_contract, pad):
    keeps_contract(lambda: SlidingWindow(clients_per_round=5, pad=pad), 5)


def ordered(pad):
    selector = SlidingWindow(clients_per_round=2, pad=pad)
    selector.order, selector.cycles = np.array([3, 0, 4, 1, 2]), 1
    return selector


@pytest.mark.parametrize(("pad", "last"), [("wrap", {2, 3}), ("short", {2})])
def test_worked_example(federation, pad, last):
    selector = ordered(pad)
    rounds = federation(5).run(selector, 3)
    assert [set(played.trained.tolist()) for played in rounds] == [{3, 0}, {4, 1}, last]
    assert selector.cycles == 1
    federation(5).play(selector)
    assert selector.cycles == 2


def test_carry_fills_from_the_next_order_and_does_not_serve_twice(federation):
    fed, selector = federation(5), ordered("carry")
    fed.run(selector, 2)
    third = fed.play(selector).trained
    assert 2 in third
    assert len(third) == 2
    assert len(selector.order) == 4  # one of the next order has had its turn
    assert set(selector.order.tolist()) == set(range(5)) - (set(third.tolist()) - {2})


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 15), st.integers(1, 14), st.sampled_from(["wrap", "short"]), st.integers(0, 99))
def test_everybody_takes_part_in_every_cycle(clients, count, pad, seed):
    count = min(count, clients - 1)
    cycle = -(-clients // count)
    federation, selector = FakeFederation(clients, seed=seed), SlidingWindow(clients_per_round=count, pad=pad)
    for _ in range(3):
        windows = [played.trained for played in federation.run(selector, cycle)]
        counts = np.bincount(np.concatenate(windows), minlength=clients)
        extra = 0 if pad == "short" else cycle * count - clients
        assert counts.min() == 1
        assert (counts == 2).sum() == extra
        assert all(len(window) == count for window in windows[:-1])


def test_carry_serves_everybody_equally_in_the_long_run(federation):
    fed, selector = federation(7), SlidingWindow(clients_per_round=3, pad="carry")
    fed.run(selector, 70)
    assert np.ptp(fed.history.trainings) <= 2


def test_the_published_window_of_six_of_twenty(federation):
    fed, selector = federation(20), SlidingWindow(clients_per_round=6)
    fed.run(selector, 4)
    assert (fed.history.trainings == 2).sum() == 4
    assert sorted(selector.order[:4]) == np.flatnonzero(fed.history.trainings == 2).tolist()


def test_the_first_cycle_may_go_by_id(federation):
    rounds = federation(6).run(SlidingWindow(clients_per_round=2, shuffle_first=False), 3)
    assert [played.trained.tolist() for played in rounds] == [[0, 1], [2, 3], [4, 5]]


def test_the_unreachable_are_skipped(federation):
    played = federation(5).play(ordered("wrap"), available=[0, 1, 2, 4])
    assert set(played.trained.tolist()) == {0, 4}


def test_newcomers_are_in_the_next_order(federation):
    fed, selector = federation(6), SlidingWindow(clients_per_round=3)
    fed.play(selector)
    fed.grow([10])
    assert 6 not in fed.play(selector).trained
    fed.play(selector)
    assert sorted(selector.order) == list(range(7))
