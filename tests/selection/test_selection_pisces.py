"""Pisces: utilities with staleness, exploration, outliers; and its pace."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN

from muster.aggregation.fedavg import FedAvg
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.experiment import run
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.pisces import PiscesPace
from muster.selection._ranking import highest
from muster.selection.base import Plan, Selector, Train, View
from muster.selection.pisces import Pisces, loss_outliers, utilities
from muster.server import Server
from muster.signals.losses import SquaredLoss
from muster.world.devices.base import Devices

CLIENTS = 30


@pytest.mark.parametrize("options", [{}, {"credits": 0}, {"credits": 1, "compared_least": 3, "neighbours": 2}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: Pisces(clients_per_round=4, radius=1.0, **options), 4, rounds=8)


def test_utilities_of_a_worked_example():
    # Losses 1, 2, 2: their root mean square is √3. An answer that missed three aggregations counts half.
    found = utilities(np.array([3, 3, 10]), np.array([3**0.5, 3**0.5, 0.5]), np.array([0.0, 3.0, 8.0]), 0.5)
    np.testing.assert_allclose(found, [5.196152, 2.598076, 5 / 3], atol=5e-7)


# --- outliers --------------------------------------------------------------------------------------------


def test_outliers_of_a_worked_example():
    losses = np.array([1.0, 1.25, 1.5, 2.0, 5.0, 1.25, 5.25])
    # 1.5 has four within ½, 2.0 itself not, but 1.5 is near it; two alone make no crowd.
    assert np.flatnonzero(loss_outliers(losses, 0.5, 4)).tolist() == [4, 6]
    assert np.flatnonzero(loss_outliers(losses, 0.25, 4)).tolist() == [3, 4, 6]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=25), st.sampled_from([0.25, 0.5, 1.0]), st.integers(1, 8))
def test_outliers_are_those_of_dbscan(eighths, radius, neighbours):
    losses = np.array(eighths) / 8
    expected = DBSCAN(eps=radius, min_samples=neighbours).fit(losses[:, None]).labels_ == -1
    np.testing.assert_array_equal(loss_outliers(losses, radius, neighbours), expected)


def liars(federation, clients=30, odd=(3, 7), seed=0):
    squares = np.full(clients, 1.0) + np.arange(clients) / 100
    squares[list(odd)] = 100.0
    return federation(clients, seed=seed, script={"squared_loss": squares})


def test_who_sends_outliers_time_and_again_is_not_chosen_any_more(federation):
    fed, selector = liars(federation), Pisces(clients_per_round=30, credits=3)
    for round in range(3):
        assert fed.play(selector).trained.tolist() == list(range(30))
        assert selector.offences.tolist() == [(round + 1) * (k in (3, 7)) for k in range(30)]
    assert fed.play(selector).trained.tolist() == [k for k in range(30) if k not in (3, 7)]
    assert fed.play(selector, available=[3, 7]).trained.tolist() == [3, 7], "nobody else is there"


def test_nobody_is_judged_by_few_losses(federation):
    fed = liars(federation, clients=19)
    selector = Pisces(clients_per_round=19)
    fed.run(selector, 3)
    assert not selector.offences.any(), "the same client's losses count once"
    selector.compared_least = 19
    fed.play(selector)
    assert selector.offences.sum() == 2


def test_losses_are_compared_with_those_of_a_few_rounds_only(federation):
    """Losses fall: what was ordinary five rounds ago is not any more, and does not matter."""
    script = {"squared_loss": lambda clients, round: np.full(len(clients), (20.0 - 2 * round) ** 2)}
    fed = federation(8, script=script)
    selector = Pisces(clients_per_round=8, compared_least=1, neighbours=3, compared_rounds=5)
    fed.run(selector, 9)
    assert not selector.offences.any()
    assert set(selector.recent[:, 0].astype(int)) <= set(range(4, 9)), "nothing is kept longer than needed"


def test_without_credits_nobody_is_suspected(federation):
    fed, selector = liars(federation), Pisces(clients_per_round=30, credits=0)
    fed.run(selector, 8)
    assert fed.play(selector).trained.tolist() == list(range(30))
    assert not len(selector.recent)


# --- choice ----------------------------------------------------------------------------------------------


def test_exploration_decays_once_a_round(federation):
    fed, selector, seen = federation(500), Pisces(clients_per_round=5), []
    for _ in range(60):
        fed.play(selector)
        seen.append(selector.epsilon)
        list_of_cohorts = selector.epsilon
        fed.next_round -= 1
        fed.play(selector)
        assert selector.epsilon == list_of_cohorts
    np.testing.assert_allclose(seen[:3], [0.9, 0.882, 0.86436])
    assert seen[-1] == 0.3


def test_the_most_useful_are_exploited(federation):
    fed = federation(12, sizes=[10] * 12, script={"squared_loss": np.arange(12.0)})
    selector = Pisces(clients_per_round=12)
    fed.play(selector)
    selector.clients_per_round, selector.epsilon = 3, 0.0
    assert fed.play(selector).trained.tolist() == [9, 10, 11]
    # An answer that is stale by three aggregations counts half.
    selector.staleness[11] = [3.0] * 5
    assert fed.play(selector).trained.tolist() == [8, 9, 10]


def test_the_staleness_is_a_mean_of_the_last_five(federation):
    fed = federation(2, sizes=[10, 10], script={"squared_loss": [1.0] * 3})
    selector = Pisces(clients_per_round=2)
    told = [7, 1, 2, 3, 4, 5]
    for staleness in told:
        fed.history.stale(np.array([0]), np.array([staleness]))
        fed.play(selector)
    assert selector.staleness[0].tolist() == [5, 4, 3, 2, 1]
    found = selector._scores(fed.view(), np.array([0, 1]))
    np.testing.assert_allclose(found, [10 * 4**-0.5, 10.0])
    fed.grow([10])
    selector.clients_per_round = 3
    fed.play(selector)
    assert selector.staleness[2, 0] == 0
    assert np.isnan(selector.staleness[2, 1:]).all()


def test_a_loss_that_is_not_a_number_makes_a_client_unexplored_again(federation):
    fed, selector = federation(3), Pisces(clients_per_round=3)
    fed.play(selector, drop=[2])
    assert selector.explored.tolist() == [True, True, False]
    fed.play(selector, nan={"squared_loss": [1]})
    assert selector.explored.tolist() == [True, False, True]


# --- against a slow form, on the clock -------------------------------------------------------------------


@dataclass
class SlowPisces(Selector):
    """Client by client, with dictionaries, in the order of its authors' public code; it draws as the fast one."""

    clients_per_round: int
    records: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    offences: dict[int, int] = field(default_factory=dict)
    started: dict[int, tuple[int, int]] = field(default_factory=dict)
    pool: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    epsilon: float = 0.9
    last: int = 0
    least: int = 6
    neighbours: int = 3
    radius: float = 0.05

    def round(self, fed: View) -> Plan:
        if fed.round > self.last:
            self.epsilon = max(0.98 * self.epsilon, 0.3)
        self.last = fed.round
        self.listen(fed)
        idle = [c for c in fed.available.tolist() if self.offences.get(c, 0) < 2] or fed.available.tolist()
        old = [c for c in idle if c in self.losses]
        new = [c for c in idle if c not in self.losses]
        explore = min(len(new), fed.rng.binomial(self.clients_per_round, self.epsilon))
        exploit = min(len(old), self.clients_per_round - explore)
        scores = []
        for client in old:
            lag = statistics.fmean([x for x, _ in self.records[client][-5:]])
            scores.append(fed.sizes[client] * self.losses[client] / (lag + 1) ** 0.5)
        chosen = [old[i] for i in highest(np.array(scores), exploit, fed.rng)]
        chosen += fed.sample(self.clients_per_round - exploit, np.array(new, dtype=np.int64)).tolist()
        for client in chosen:
            self.started[client] = (fed.round, int(fed.history.trainings[client]))
        yield Train(np.sort(np.array(chosen, dtype=np.int64)), report=(SquaredLoss(),))
        self.listen(fed)

    def listen(self, fed: View) -> None:
        news = []
        for client, (start, before) in sorted(self.started.items()):
            if fed.history.trainings[client] > before:
                del self.started[client]
                loss = float(fed.history.last("squared_loss")[client]) ** 0.5
                self.records.setdefault(client, []).append((int(fed.history.staleness[client]), loss))
                self.losses[client] = loss
                self.pool.setdefault(start, []).append((client, loss))
                news.append((start, client))
        for start, client in news:
            compared: dict[int, float] = {}
            for version in range(start, start - 5, -1):
                for other, loss in reversed(self.pool.get(version, [])):
                    compared.setdefault(other, loss)
            if len(compared) < self.least:
                continue
            rows = np.array(list(compared.values()))[:, None]
            labels = DBSCAN(eps=self.radius, min_samples=self.neighbours).fit(rows).labels_
            if labels[list(compared).index(client)] == -1:
                self.offences[client] = self.offences.get(client, 0) + 1


def world(seed=3):
    speed = np.random.default_rng(seed).lognormal(3, 1.0, CLIENTS)
    return Devices(speed, np.full(CLIENTS, 1e12), np.full(CLIENTS, 1e12))


def served(selector, pacing, rounds=40, seed=0, devices=None):
    server = Server(selector, FedAvg(), TrialEngine(CLIENTS), devices=devices or world(), pacing=pacing, seed=seed)
    return server, server.run(rounds)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "pacing", [PiscesPace(in_flight=12, bound=4.0), Buffered(in_flight=9, k=2), Deadline(seconds=4.0, late="use")]
)
def test_runs_are_those_of_the_slow_form(pacing, count):
    fast = Pisces(count, credits=2, compared_least=6, neighbours=3, radius=0.05)
    slow = SlowPisces(count)
    (_, found), (_, expected) = served(fast, pacing), served(slow, pacing)
    assert found.selections == expected.selections
    flown = [t.flown for r in found.records for t in r.trainings]
    assert max(s for f in flown for s in f.staleness) > 1
    assert {c: n for c, n in enumerate(fast.offences.tolist()) if n} == slow.offences
    assert count == 1 or slow.offences


# --- pace ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [2, 5])
def test_nobody_misses_more_aggregations_than_the_bound(bound):
    """Where a first training is expected to last as long as the longest."""
    devices = world()
    slowest = float((TrialEngine(CLIENTS).population.sizes / devices.speed).max()) + 1.0
    pacing = PiscesPace(in_flight=12, bound=bound, first_latency=slowest)
    _, result = served(Pisces(clients_per_round=1, credits=0), pacing, rounds=80)
    staleness = [s for r in result.records for t in r.trainings for s in t.flown.staleness]
    assert 0 < max(staleness) <= bound
    free = served(Pisces(clients_per_round=1, credits=0), Buffered(in_flight=12, k=1), rounds=80)[1]
    assert max(s for r in free.records for t in r.trainings for s in t.flown.staleness) > bound


def test_an_aggregation_takes_all_that_has_arrived_in_the_interval():
    pacing = PiscesPace(in_flight=6, bound=2.0, first_latency=10.0)
    server, result = served(Pisces(clients_per_round=6), pacing, rounds=1)
    times = np.sort(server.engine.population.sizes / world().speed)
    first = result.records[0]
    ended = first.trainings[0].flown.ended
    assert max(ended) <= first.ended
    assert first.ended == pytest.approx(max(5.0, min(ended)), rel=1e-6)
    still = server.airspace.flights.ends
    assert (still > first.ended).all()
    assert len(still) + len(ended) == 6
    assert times[0] < 5.0


@pytest.mark.parametrize(
    "options",
    [
        {"staleness_penalty": -1.0},
        {"staleness_memory": 0},
        {"exploration": 1.5},
        {"credits": -1},
        {"compared_rounds": 0},
        {"neighbours": 0},
        {"radius": -0.5},
    ],
)
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match=f"pisces: {next(iter(options))}"):
        Pisces(clients_per_round=2, **options).check(federation(10).population)


def test_without_devices_it_is_refused_before_round_1(tiny):
    with pytest.raises(ConfigError, match="clients take no time") as error:
        run(tiny(selection={"method": "pisces", "clients_per_round": 3}), workers=0)
    assert "[devices]" in str(error.value)
