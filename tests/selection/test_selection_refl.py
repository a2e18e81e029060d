"""REFL: the least available first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from muster.aggregation.fedavg import FedAvg
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.experiment import run
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.selection.base import selectors
from muster.selection.refl import Refl, expected_stragglers, smoothed
from muster.server import Server
from muster.server.loop import Observer
from muster.server.testing import FakeFederation
from muster.world.availability.base import TimedAvailability
from muster.world.devices.base import Devices

PRESENCE = [0.9, 0.1, 0.5, 0.1, 1.0, 0.8]


@pytest.mark.parametrize(
    "options",
    [{}, {"rank": "throughout"}, {"hold_off": 0}, {"target": "adaptive", "least_target": 0.5}],
)
def test_contract(keeps_contract, options):
    presence = np.random.default_rng(0).random(15).round(1)
    seconds = np.arange(1.0, 16.0)
    keeps_contract(lambda: Refl(clients_per_round=4, **options), 4, rounds=8, presence=presence, seconds=seconds)


def test_worked_example(federation):
    fed = federation(6, presence=PRESENCE)
    assert fed.play(Refl(clients_per_round=2)).trained.tolist() == [1, 3]
    assert fed.play(Refl(clients_per_round=3)).trained.tolist() == [1, 2, 3]
    assert fed.play(Refl(clients_per_round=2), available=[0, 2, 4]).trained.tolist() == [0, 2]


def test_some_of_those_who_are_there_may_be_asked(federation):
    presence = np.linspace(0, 1, 40)
    chosen = [
        federation(40, presence=presence, seed=seed).play(Refl(clients_per_round=2, candidates=10)).trained
        for seed in range(50)
    ]
    first, second = np.transpose(chosen)
    assert len(np.unique(first)) > 5
    # The lowest two of ten numbers between 0 and 1 are 1/11 and 2/11 on average.
    assert presence[first].mean() == pytest.approx(1 / 11, abs=0.05)
    assert presence[second].mean() == pytest.approx(2 / 11, abs=0.05)


def test_within_another_methods_choice_it_looks_at_those(federation):
    pool = {"method": "sliding-window", "clients_per_round": 4}
    selector = selectors.build("within", {"pool": pool, "inner": Refl(clients_per_round=2, hold_off=0)})
    presence = np.random.default_rng(1).random(12)
    fed = federation(12, presence=presence)
    for played in fed.run(selector, 3):
        assert len(played.trained) == 2
    outer = federation(12, presence=presence).play(selectors.build(pool.pop("method"), pool)).trained
    first = federation(12, presence=presence).play(
        selectors.build("within", {"pool": {"method": "sliding-window"} | pool, "inner": Refl(2)})
    )
    assert first.trained.tolist() == sorted(outer[np.argsort(presence[outer])[:2]].tolist())


def test_who_stays_for_this_round_and_not_for_the_next_goes_first_and_the_lot_decides_among_them(federation):
    """The authors' code: who leaves during this round is in one class with those who stay for both."""
    now = [1.0, 1.0, 1.0, 0.9, 0.0] + [1.0] * 5
    later = [1.0, 1.0, 1.0, 0.0, 0.0, 0.999, 0.1, 0.0, 0.5, 0.7]
    presence = [now, later]
    chosen = [
        federation(10, presence=presence, seed=seed)
        .play(Refl(clients_per_round=2, rank="throughout"))
        .trained.tolist()
        for seed in range(60)
    ]
    counts = np.bincount(np.concatenate(chosen), minlength=10)
    assert not counts[:5].any()
    assert chi2.sf(((counts[5:] - 24) ** 2 / 24).sum(), 4) > 1e-4


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=12),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 100),
)
def test_rounds_are_those_of_the_textbook(presence, count, hold_off, seed):
    """Nobody stays out who is less available than somebody chosen; those who rest come last."""
    fed = FakeFederation(len(presence), presence=presence, seed=seed)
    selector, went = Refl(clients_per_round=count, hold_off=hold_off), {}
    for round in range(6):
        chosen = fed.play(selector).trained.tolist()
        key = {k: (round - went[k] < hold_off if k in went else False, presence[k]) for k in range(len(presence))}
        assert len(chosen) == min(count, len(presence))
        stayed = [key[k] for k in key if k not in chosen]
        assert not stayed or max(key[k] for k in chosen) <= min(stayed)
        went |= dict.fromkeys(chosen, round)


def test_equals_have_equal_chances():
    counts = np.zeros(8)
    for seed in range(200):
        fed = FakeFederation(8, presence=[0.3] * 8, seed=seed)
        counts[fed.play(Refl(clients_per_round=2)).trained] += 1
    # Sets of two: counts of two clients have the correlation −1/7.
    assert chi2.sf(7 / 8 * ((counts - 50) ** 2).sum() / (200 * 0.25 * 0.75), 7) > 1e-4


def test_the_estimate_is_a_moving_average():
    assert smoothed(1000.0, 100.0, 0.25) == 325.0
    assert smoothed(325.0, 100.0, 0.25) == 156.25


def seen_intervals(fed, selector, rounds):
    """The intervals for which a selector asks."""
    seen = []

    def forecast(begin, end, clients):
        seen.append((begin, end))
        return np.zeros(len(clients))

    for _ in range(rounds):
        view = fed.view()
        object.__setattr__(view, "forecast", forecast)
        fed.view = lambda available, view=view: view
        fed.play(selector)
        del fed.view
    return seen


def test_it_looks_at_the_round_after_this_one(federation):
    fed = federation(4, seconds=[100.0] * 4)
    found = seen_intervals(fed, Refl(clients_per_round=4), 3)
    assert found == [(1000.0, 2000.0), (100 + 325.0, 100 + 650.0), (200 + 156.25, 200 + 312.5)]


def test_a_night_without_anybody_is_no_long_round(federation):
    fed, selector = federation(4, seconds=[100.0] * 4), Refl(clients_per_round=4)
    fed.play(selector)
    fed.now += 50_000.0
    fed.play(selector)
    assert selector.estimate == 325.0


def test_several_cohorts_of_a_round_are_one_round(federation):
    fed, selector = federation(8, seconds=[100.0] * 8), Refl(clients_per_round=2)
    fed.play(selector)
    fed.next_round = 0
    fed.play(selector)
    assert selector.estimate == 1000.0
    fed.play(selector)
    assert selector.estimate == 325.0, "two cohorts of 100 s that follow one another"


def test_stragglers_that_are_expected():
    durations, started = np.array([50.0, np.nan, 200.0, 30.0]), np.array([80.0, 80.0, 20.0, 0.0])
    # Due at 130, at a time that nobody knows, at 220, and at 30: that is overdue.
    assert expected_stragglers(durations, started, 100.0, 25.0) == 1
    assert expected_stragglers(durations, started, 100.0, 30.0) == 2
    assert expected_stragglers(durations, started, 100.0, 120.0) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"smoothing": 1.5},
        {"first_estimate": 0.0},
        {"first_estimate": np.inf},
        {"hold_off": -1},
        {"least_target": -0.1},
        {"candidates": 1},
        {"clients_per_round": 0},
    ],
)
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Refl(**{"clients_per_round": 2} | options).check(federation(10).population)


@pytest.mark.parametrize("availability", [{}, {"method": "bernoulli"}])
def test_without_a_future_it_is_refused_before_round_1(tiny, availability):
    selection = {"method": "refl", "clients_per_round": 3}
    with pytest.raises(ConfigError, match="which clients will be available") as error:
        run(tiny(selection=selection, devices={"method": "lognormal"}, availability=availability), workers=0)
    assert "rhythm" in str(error.value)


# --- on the clock ----------------------------------------------------------------------------------------


class Shifts(TimedAvailability):
    """Client k is there from the start of every period of 100 s on, for so many seconds."""

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths, dtype=np.float64)

    def states(self, now, who, seed):
        there = now % 100.0 < self.lengths[who]
        start = now - now % 100.0
        return there, np.where(there, start + self.lengths[who], start + 100.0)


def on_the_clock(selector, pacing=None, clients=20, rounds=12):
    speed = np.random.default_rng(5).lognormal(3, 0.8, clients)
    devices = Devices(speed, np.full(clients, 1e12), np.full(clients, 1e12))
    server = Server(
        selector,
        FedAvg(),
        TrialEngine(clients),
        devices=devices,
        availability=Shifts(np.linspace(60, 99, clients)),
        pacing=pacing,
        observers=[Cohorts()],
    )
    return server, server.run(rounds)


def test_the_shortest_shifts_go_first():
    server, result = on_the_clock(Refl(clients_per_round=4, first_estimate=40.0, hold_off=0), rounds=1)
    # In 40 to 80 s, the first client is there until 60, the second until 62, …
    assert sorted(result.records[0].trainings[0].flown.clients) == [0, 1, 2, 3]
    assert server.selector.last == 0


class Cohorts(Observer):
    """How many clients each training asked for."""

    def __init__(self):
        self.sizes = []

    def requested(self, request, round):
        self.sizes.append(len(request.clients))


@pytest.mark.parametrize("pacing", [Deadline(seconds=4.0, late="use"), Buffered(in_flight=8, k=2)])
def test_late_answers_are_used_and_counted_on(pacing):
    fixed, adaptive = (
        on_the_clock(Refl(clients_per_round=4, first_estimate=5.0, target=target), pacing, rounds=20)
        for target in ("fixed", "adaptive")
    )
    assert max(s for r in fixed[1].records for t in r.trainings for s in t.flown.staleness) > 0
    sizes = [server.observers[0].sizes for server, _ in (fixed, adaptive)]
    assert set(sizes[0]) == {4}
    assert min(sizes[1]) < 4
    assert max(sizes[1]) == 4
    server = adaptive[0]
    assert set(server.selector.awaited[:, 0].astype(int)) >= set(server.airspace.flights.clients.tolist())
