"""Whole numbers from proportions, and the draws that leave no mass where there is room."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.data.federated import Index
from muster.data.partition._pools import class_pools, matching_shares
from muster.data.partition._rounding import bounded_tries, cut, even, largest_remainder, shares_with_room


def test_cut_points_round_down():
    assert cut(np.array([0.25, 0.25, 0.5]), 10).tolist() == [2, 3, 5]


def test_equal_proportions_are_cut_equally_in_spite_of_floating_point():
    assert cut(np.full(10, 0.1), 20).tolist() == [2] * 10
    assert cut(np.full(49, 1 / 49), 49).tolist() == [1] * 49


def test_largest_remainder_worked_example():
    q = np.array([0.3335, 0.3335, 0.333, 0, 0, 0, 0, 0, 0, 0])
    assert largest_remainder(q, 2000).tolist() == [667, 667, 666, 0, 0, 0, 0, 0, 0, 0]


def test_largest_remainder_works_row_by_row():
    weights = np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]])
    assert largest_remainder(weights, np.array([4, 8])).tolist() == [[2, 1, 1], [0, 6, 2]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3), st.integers(0, 10_000)
)
def test_rounding_keeps_totals_and_stays_within_one(weights, total):
    shares = np.array(weights) / np.sum(weights)
    for counts in (largest_remainder(np.array(weights), total), cut(shares, total)):
        assert counts.sum() == total
        assert (counts >= 0).all()
        assert (np.abs(counts - shares * total) < 1 + 1e-6).all()
    assert (largest_remainder(np.array(weights), total)[np.array(weights) == 0] == 0).all()


def test_even_parts():
    assert even(10, 3).tolist() == [4, 3, 3]


def test_shares_go_only_to_clients_with_room():
    room = np.array([True, False, True])
    (shares,) = shares_with_room([room], 0.5, np.random.default_rng(0))
    assert shares[1] == 0
    assert shares.sum() == pytest.approx(1)


class OneSided:
    """A generator whose Dirichlet draws all go to client 0; it counts them."""

    def __init__(self):
        self.draws = 0

    def dirichlet(self, alphas):
        self.draws += 1
        return np.eye(len(alphas))[0]


def test_a_draw_without_mass_where_there_is_room_is_repeated_a_hundred_times_then_shared_equally():
    rng = OneSided()
    room = np.array([False, True, True, False])
    shares = shares_with_room([room, ~room], 0.001, rng)
    assert rng.draws == 100
    assert shares[0].tolist() == [0, 0.5, 0.5, 0]
    assert shares[1].tolist() == [1, 0, 0, 0]


def test_the_reference_gives_such_a_class_to_the_last_client():
    rng = OneSided()
    (shares,) = shares_with_room([np.array([False, True, True])], 0.001, rng, "ref")
    assert rng.draws == 1
    assert shares.tolist() == [0, 0, 1]


def test_tries_are_bounded_by_number_and_by_work():
    assert bounded_tries(1000, 500) == 1000
    assert bounded_tries(1000, 10**7) == 40
    assert bounded_tries(1000, 10**12) == 1


def test_class_pools_keep_file_order():
    pools = class_pools(np.array([1, 0, 1, 0, 3]), 4)
    assert [pools[c].tolist() for c in range(4)] == [[1, 3], [0, 2], [], [4]]


def test_matching_shares_are_exact_where_they_are_whole_numbers():
    train = Index.from_lists([[0, 1, 2], [3], []])  # of class 0: three quarters, one quarter, nothing
    test = matching_shares(train, np.zeros(4, int), np.zeros(8, int), 1, np.random.default_rng(0))
    assert test.sizes.tolist() == [6, 2, 0]


def test_matching_shares_leave_the_part_that_nobody_trains_on():
    train = Index.from_lists([[0], [1]])  # two of four samples are used
    test = matching_shares(train, np.zeros(4, int), np.zeros(8, int), 1, np.random.default_rng(0))
    assert test.sizes.tolist() == [2, 2]
