"""FedCS: clients within a deadline."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.experiment import run
from muster.selection.fedcs import FedCS, schedule, side_by_side

COMPUTE, UP, DOWN = (5, 10, 2, 20), (3, 2, 4, 1), (1, 1, 2, 1)
EXAMPLE = np.array([DOWN, COMPUTE, UP], dtype=np.float64).T


def textbook(times, budget):
    """The greedy loop as published: take the cheapest, drop it when it does not fit, go on."""
    left, chosen, theta, slowest = list(range(len(times))), [], 0.0, 0.0
    while left:
        costs = [max(slowest, times[k, 0]) - slowest + times[k, 2] + max(0, times[k, 1] - theta) for k in left]
        best = left.pop(int(np.argmin(costs)))
        later = theta + times[best, 2] + max(0, times[best, 1] - theta)
        if max(slowest, times[best, 0]) + later < budget:
            chosen.append(best)
            theta, slowest = later, max(slowest, times[best, 0])
    return chosen


@pytest.mark.parametrize(("deadline", "expected"), [(25, [2, 0, 1, 3]), (20, [2, 0, 1]), (14, [2, 0]), (8, [])])
def test_worked_example(deadline, expected):
    assert schedule(EXAMPLE, deadline).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=9), st.integers(1, 60))
def test_equals_the_textbook_loop(rows, budget):
    times = np.array(rows, dtype=np.float64)
    assert schedule(times, budget).tolist() == textbook(times, budget)


def test_contract(keeps_contract):
    times = np.arange(1, 46, dtype=np.float64).reshape(15, 3)
    make = lambda: FedCS(candidates=0.5, deadline=60.0, clients_per_round=3)  # noqa: E731
    keeps_contract(make, 3, script={"device_time": times})


def test_at_most_so_many():
    assert schedule(EXAMPLE, 25, most=2).tolist() == [2, 0]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_times_must_be_positive_numbers(bad):
    with pytest.raises(ValueError, match="positive"):
        schedule(np.array([[1.0, bad, 1.0]]), 10)


def test_a_round(federation):
    fed = federation(4, script={"device_time": EXAMPLE})
    played = fed.play(FedCS(candidates=1.0, deadline=20.0))
    assert played.asks[0].clients.tolist() == [0, 1, 2, 3]
    assert played.trained.tolist() == [0, 1, 2]
    assert fed.play(FedCS(candidates=0.3)).asks[0].clients.size == 2
    late = fed.play(FedCS(candidates=1.0, deadline=30.0, selection_time=4, aggregation_time=6))
    assert late.trained.tolist() == [0, 1, 2]


def test_when_nothing_fits_the_cheapest_trains_and_it_is_said(federation, caplog):
    fed = federation(4, script={"device_time": EXAMPLE})
    assert fed.play(FedCS(candidates=1.0, deadline=3.0)).trained.tolist() == [2]
    assert "no client meets the deadline" in caplog.text


def test_clients_without_usable_times_are_left_out(federation):
    fed = federation(4, script={"device_time": EXAMPLE})
    played = fed.play(FedCS(candidates=1.0, deadline=25.0), nan={"device_time": [2]}, drop=[3])
    assert played.trained.tolist() == [0, 1]


@pytest.mark.parametrize(
    "options",
    [{"candidates": 0}, {"candidates": 1.5}, {"deadline": 5, "selection_time": 5}, {"clients_per_round": 0}],
)
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match="fedcs"):
        FedCS(**options).check(federation(10).population)


# --- uploads side by side --------------------------------------------------------------------------------


def test_side_by_side_everybody_fits_who_is_fast_enough_alone():
    rng = np.random.default_rng(0)
    # They take 9, 13, 8 and 22 s.
    assert side_by_side(EXAMPLE, 13.5, None, rng).tolist() == [0, 1, 2]
    assert side_by_side(EXAMPLE, 13.0, None, rng).tolist() == [0, 2]
    assert side_by_side(EXAMPLE, 13.5, 2, rng).tolist() == [0, 2]
    assert side_by_side(EXAMPLE, 8.0, 2, rng).tolist() == []
    drawn = {tuple(side_by_side(np.ones((4, 3)), 5.0, 2, rng).tolist()) for _ in range(60)}
    assert len(drawn) == 6, "of equally fast clients, chance decides which go"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=9), st.integers(1, 60))
def test_who_fits_in_turn_fits_side_by_side(rows, budget):
    times = np.array(rows, dtype=np.float64)
    together = side_by_side(times, budget, None, np.random.default_rng(0))
    assert set(schedule(times, budget).tolist()) <= set(together.tolist())


def test_a_round_side_by_side(federation):
    fed = federation(4, script={"device_time": EXAMPLE})
    assert fed.play(FedCS(candidates=1.0, deadline=14.0, uploads="together")).trained.tolist() == [0, 1, 2]
    assert fed.play(FedCS(candidates=1.0, deadline=3.0, uploads="together")).trained.tolist() == [2]


# --- on the clock ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uploads", ["in turn", "together"])
def test_with_a_deadline_as_pacing_nobody_is_late(tiny, uploads):
    def made(selection):
        return run(
            tiny(
                selection=selection,
                devices={"method": "lognormal", "samples_per_second": 100.0},
                pacing={"method": "deadline", "seconds": 1.2},
                rounds=4,
            ),
            workers=0,
        )

    chosen = made({"method": "fedcs", "candidates": 1.0, "deadline": 1.2, "uploads": uploads})
    by_lot = made({"method": "random", "clients_per_round": 8})
    assert chosen.ledger.total().wasted_trainings == 0
    assert by_lot.ledger.total().wasted_trainings > 0
    assert all(0 < len(record.trainings[0].clients) < 12 for record in chosen.records)


def test_a_round_that_nobody_can_meet_is_told_by_its_number(federation, caplog):
    fed = federation(6)
    fed.play(FedCS(candidates=1.0, deadline=1e9))
    fed.play(FedCS(candidates=1.0, deadline=1e-9))
    assert [record.getMessage() for record in caplog.records] == [
        "round 2: no client meets the deadline of 1e-09 s"
    ]
