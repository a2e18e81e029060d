"""Oort: utilities, scores, exploration, pacer, blacklist."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.aggregation.fedavg import FedAvg
from muster.core.errors import ConfigError
from muster.core.sampling import weighted_sample
from muster.engine.trial import TrialEngine
from muster.pacing.buffered import Buffered
from muster.selection._ranking import highest, lowest
from muster.selection.oort import Oort, preferred_duration, scores, speed_penalty
from muster.server import Server
from muster.world.devices.base import Devices

REWARDS = np.array([10.0, 20.0, 30.0, 100.0])
LAST = np.array([9, 5, 2, 8])
DURATIONS = np.array([1.0, 2.0, 4.0, 1.0])


@pytest.mark.parametrize("speed", ["none", "measured", "profiled", "reported", "asked"])
def test_contract(keeps_contract, speed):
    keeps_contract(lambda: Oort(clients_per_round=4, speed=speed, pacer_step=2, blacklist_rounds=2), 4, rounds=12)


def test_contract_with_the_variants(keeps_contract):
    keeps_contract(lambda: Oort(4, util="sqrt_loss", pacer="paper", pacer_seconds=0.5, speed="reported"), 4)


def test_worked_example_of_scores():
    preferred = preferred_duration(DURATIONS, 50)
    assert preferred == 2.0
    assert speed_penalty(DURATIONS, preferred, 2.0).tolist() == [1, 1, 0.25, 1]
    found = scores(REWARDS, LAST, DURATIONS, 10, preferred, clip_bound=0.95)
    np.testing.assert_allclose(found, [0.160062, 0.325806, 0.140404, 1.169654], atol=5e-7)


def test_scores_take_lists_and_whole_numbers():
    found = scores([10, 20, 30, 100], [9, 5, 2, 8], [1, 2, 4, 1], 10, 2)
    np.testing.assert_array_equal(found, scores(REWARDS, LAST, DURATIONS, 10, 2.0))
    np.testing.assert_array_equal(scores(REWARDS, LAST, DURATIONS.astype(int), 10, 2), found)


def textbook_scores(rewards, last, durations, r, *, preferred, clip_bound, alpha):
    ordered = sorted(rewards)
    clip = ordered[min(math.floor(len(ordered) * clip_bound), len(ordered) - 1)]
    low = min(rewards) * 0.999
    spread = max(max(rewards) - low, 1e-4)
    result = []
    for reward, when, duration in zip(rewards, last, durations, strict=True):
        score = (min(reward, clip) - low) / spread + math.sqrt(0.1 * math.log(r) / max(when, 1))
        result.append(score * (preferred / duration) ** alpha if duration > preferred else score)
    return result


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 9), st.floats(0.1, 9)), min_size=1, max_size=8),
    st.integers(1, 30),
    st.floats(0.1, 10),
    st.floats(0, 1),
)
def test_scores_equal_the_textbook(rows, r, preferred, clip_bound):
    rewards, last, durations = (np.array(column) for column in zip(*rows, strict=True))
    expected = textbook_scores(rewards, last, durations, r, preferred=preferred, clip_bound=clip_bound, alpha=2.0)
    found = scores(rewards.astype(float), last, durations, r, preferred, clip_bound=clip_bound)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_preferred_duration():
    assert preferred_duration(DURATIONS, 100) == math.inf
    assert preferred_duration(np.array([np.nan]), 30) == math.inf
    assert preferred_duration(np.array([3.0, np.nan, 1.0]), 0) == 1.0
    assert preferred_duration(np.array([3.0, np.nan, 1.0]), 99) == 3.0


def test_unknown_durations_are_not_penalised():
    assert speed_penalty(np.array([np.nan, 8.0]), 4.0, 2.0).tolist() == [1.0, 0.25]


def test_exploration_decays_to_its_minimum(federation):
    fed, selector = federation(500), Oort(clients_per_round=5)
    seen = []
    for _ in range(80):
        fed.play(selector)
        seen.append(selector.epsilon)
    np.testing.assert_allclose(seen[:3], [0.882, 0.86436, 0.847073], atol=5e-7)
    assert seen[73] > 0.2  # 75 rounds to the minimum
    assert seen[74] == 0.2
    assert seen[79] == 0.2


def test_the_first_round_explores_large_clients(federation):
    sizes = [1] * 30 + [1000] * 10
    played = federation(sizes=sizes).play(Oort(clients_per_round=2, sample_window=5))
    assert (played.trained >= 30).all()


def test_exploitation_prefers_high_utilities_and_leaves_out_those_below_the_cut_off(federation):
    fed = federation(8, sizes=[10] * 8, script={"squared_loss": [1, 1, 1, 1, 1, 400, 400, 400]})
    selector = Oort(clients_per_round=8)
    fed.play(selector)
    selector.clients_per_round = 2
    for played in fed.run(selector, 20):
        assert (played.trained >= 5).all()


def test_rewards_are_samples_times_the_root_mean_square_loss(federation):
    fed = federation(3, sizes=[30, 50, 100], script={"squared_loss": [4.0, 9.0, 1.0]})
    selector = Oort(clients_per_round=3, max_samples=60)
    fed.play(selector)
    assert selector.reward.tolist() == [60.0, 150.0, 60.0]
    assert selector.explored.all()
    assert selector.last_round.tolist() == [1, 1, 1]


def test_worked_example_of_utility(federation):
    """Losses 1, 2, 2 and four times ½: their mean squares are 3 and ¼."""
    selector = Oort(clients_per_round=2)
    federation(2, sizes=[3, 4], script={"squared_loss": [3.0, 0.25]}).play(selector)
    np.testing.assert_allclose(selector.reward, [5.196152, 2.0], atol=5e-7)


def test_a_silent_client_gets_the_mean_reward_and_counts_as_explored(federation):
    fed = federation(3, sizes=[10, 10, 10], script={"squared_loss": [4.0, 16.0, 1.0]})
    selector = Oort(clients_per_round=3)
    fed.play(selector, drop=[2])
    assert selector.reward.tolist() == [20.0, 40.0, 30.0]
    assert selector.explored.all()


def test_a_loss_that_is_not_a_number_makes_a_client_unexplored_again(federation):
    fed, selector = federation(3), Oort(clients_per_round=3)
    fed.play(selector)
    fed.play(selector, nan={"squared_loss": [1]})
    assert selector.explored.tolist() == [True, False, True]
    assert selector.count.tolist() == [2, 2, 2]


def test_when_everybody_is_silent_nothing_is_learnt(federation):
    fed, selector = federation(4), Oort(clients_per_round=4)
    fed.play(selector, drop=range(4))
    assert not selector.explored.any()
    assert selector.exploited.tolist() == [0.0]


def test_exploration_rests_while_nobody_is_unexplored(federation):
    fed, selector = federation(6), Oort(clients_per_round=6)
    fed.play(selector)
    assert selector.epsilon == pytest.approx(0.882)
    fed.run(selector, 3)
    assert selector.epsilon == pytest.approx(0.882)
    fed.grow([10])
    fed.play(selector)
    assert selector.epsilon == pytest.approx(0.86436)


def test_newcomers_are_explored(federation):
    fed, selector = federation(4), Oort(clients_per_round=2, exploration=1.0, exploration_decay=1.0)
    fed.run(selector, 4)
    fed.grow([10**6])
    assert 4 in fed.play(selector).trained


def test_slow_clients_are_chosen_less(federation):
    times = np.ones((10, 3))
    times[5:] = 100
    fed = federation(10, sizes=[10] * 10, seed=2, script={"squared_loss": np.ones(10), "device_time": times})
    fed.run(Oort(clients_per_round=3, speed="asked", pacer_step=1000), 60)
    assert fed.history.trainings[:5].sum() > 4 * fed.history.trainings[5:].sum()


def test_durations_are_asked_for_once(federation):
    fed, selector = federation(6), Oort(clients_per_round=2, speed="asked")
    first = fed.play(selector, drop=[0])
    assert first.asks[0].clients.tolist() == list(range(6))
    assert not fed.play(selector).asks
    fed.grow([10])
    assert fed.play(selector).asks[0].clients.tolist() == [6]


def exploited_history(selector, earlier, recent):
    selector.exploited = np.repeat([earlier, recent], selector.pacer_step).astype(np.float64)
    selector.rounds_done = 2 * selector.pacer_step
    selector._pace()
    return selector.threshold


@pytest.mark.parametrize(
    ("earlier", "recent", "expected"), [(10, 10.5, 35), (10, 12, 30), (10, 70, 25), (10, 4, 30), (0, 0, 35)]
)
def test_pacer_of_the_code(earlier, recent, expected):
    selector = Oort(clients_per_round=2, pacer_step=5)
    selector._welcome(3)
    assert exploited_history(selector, earlier, recent) == expected


@pytest.mark.parametrize(("earlier", "recent", "expected"), [(10, 9, 14.0), (10, 10, 7.0), (10, 11, 7.0)])
def test_pacer_of_the_paper(earlier, recent, expected):
    selector = Oort(clients_per_round=2, pacer_step=5, pacer="paper", pacer_seconds=7.0)
    selector._welcome(3)
    assert exploited_history(selector, earlier, recent) == expected


def test_the_pacer_moves_only_at_the_end_of_a_window():
    selector = Oort(clients_per_round=2, pacer_step=5)
    selector._welcome(3)
    selector.exploited = np.ones(10)
    for selector.rounds_done in (5, 9, 11):
        selector._pace()
        assert selector.threshold == 30


def test_the_percentage_stays_between_its_bounds():
    for start, expected in ((98, 100), (4, 5)):
        selector = Oort(clients_per_round=2, pacer_step=5, round_threshold=start)
        selector._welcome(3)
        assert exploited_history(selector, 10, 10 if start > 50 else 100) == expected


def test_blacklist_takes_the_busiest_up_to_its_share():
    selector = Oort(clients_per_round=2, blacklist_rounds=3, blacklist_max_len=0.5)
    selector._welcome(5)
    selector.count = np.array([4, 9, 3, 5, 5])
    rng = np.random.default_rng(0)
    listed = {tuple(np.flatnonzero(selector._blacklisted(rng)).tolist()) for _ in range(30)}
    assert listed == {(1, 3), (1, 4)}  # the lot decides between two who are equally busy
    selector.blacklist_max_len = 1.0
    assert np.flatnonzero(selector._blacklisted(rng)).tolist() == [0, 1, 3, 4]
    selector.blacklist_rounds = -1
    assert not selector._blacklisted(rng).any()


def test_blacklisted_clients_train_only_when_nobody_else_is_left(federation):
    fed, selector = federation(6), Oort(clients_per_round=2, blacklist_rounds=0, blacklist_max_len=0.5)
    first = set(fed.play(selector).trained.tolist())
    assert not first & set(fed.play(selector).trained.tolist())
    assert len(fed.play(selector, available=sorted(first)).trained) == 2
    assert set(fed.play(selector, available=[*first, 5]).trained.tolist()) <= {*first, 5}


def test_equal_scores_and_a_cut_off_of_one(federation):
    fed = federation(6, sizes=[10] * 6, script={"squared_loss": np.zeros(6)})
    selector = Oort(clients_per_round=3, cut_off=1.0, exploration=0.0, exploration_min=0.0)
    for played in fed.run(selector, 10):
        assert len(played.trained) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"exploration": 1.5},
        {"cut_off": -0.1},
        {"pacer_step": 0},
        {"round_threshold": 101},
        {"max_samples": 0},
        {"pacer": "paper"},
        {"sample_window": 0.5},
    ],
)
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match="oort"):
        Oort(clients_per_round=2, **options).check(federation(10).population)


def test_a_warm_up_draws_by_size_and_is_learnt_from(federation):
    sizes = np.array([10] * 10 + [90] * 10)
    fed = federation(20, sizes=sizes)
    oort = Oort(clients_per_round=4, warmup=30)
    drawn = np.concatenate([played.trains[0].clients for played in fed.run(oort, 30)])
    # Nine times as many samples: far more than half of the draws, whatever their losses are.
    assert np.mean(sizes[drawn] == 90) > 0.75
    np.testing.assert_array_equal(np.flatnonzero(oort.explored), np.unique(drawn))
    assert oort.epsilon == 0.9, "exploration has not begun to fall"
    fed.play(oort)
    assert oort.explored.all() or oort.epsilon < 0.9


def test_a_negative_warm_up_is_refused(federation):
    with pytest.raises(ConfigError, match="warmup"):
        Oort(clients_per_round=4, warmup=-1).check(federation(8).population)


# --- the whole method against a slow form ----------------------------------------------------------------


class SlowOort:
    """Oort client by client, with a dictionary for each, in the order of its authors' public code.

    Of Muster it takes only what draws lots (a weighted sample, and who of equals is first), so that both can draw
    the same.
    """

    def __init__(self, oort):
        self.options, self.arms, self.round = oort.get_params(), {}, 0
        self.epsilon, self.percentage = oort.exploration, oort.round_threshold
        self.seconds, self.exploit_history, self.exploited = oort.pacer_seconds, [0.0], []

    def __getattr__(self, name):
        return self.options[name]

    def preferred(self, durations):
        if self.pacer == "paper":
            return self.seconds
        known = sorted(durations.values())
        if self.percentage >= 100 or not known:
            return math.inf
        return known[min(int(len(known) * self.percentage / 100), len(known) - 1)]

    def pace(self):
        w = self.pacer_step
        if self.round < 2 * w or self.round % w != 0:
            return
        before, now = sum(self.exploit_history[-2 * w : -w]), sum(self.exploit_history[-w:])
        if self.pacer == "paper":
            self.seconds += self.pacer_seconds if before > now else 0
        elif abs(now - before) <= 0.1 * before:
            self.percentage = min(100.0, self.percentage + self.pacer_delta)
        elif abs(now - before) >= 5 * before:
            self.percentage = max(self.pacer_delta, self.percentage - self.pacer_delta)

    def choose(self, available, sizes, durations, rng):
        self.round += 1
        for client in range(len(sizes)):
            self.arms.setdefault(client, {"reward": 0.0, "last": 0, "count": 0, "explored": False})
        self.pace()
        limit = self.preferred(durations)
        penalty = {
            c: (limit / durations[c]) ** self.round_penalty if durations.get(c, 0) > limit else 1.0
            for c in available
        }
        black = []
        if self.blacklist_rounds >= 0:
            busy = [c for c, arm in sorted(self.arms.items()) if arm["count"] > self.blacklist_rounds]
            most = int(self.blacklist_max_len * len(self.arms))
            black = [busy[i] for i in lowest(np.array([-self.arms[c]["count"] for c in busy]), most, rng)]
        allowed = [c for c in available if c not in black]
        old = [c for c in allowed if self.arms[c]["explored"]]
        new = [c for c in allowed if not self.arms[c]["explored"]]
        if new:
            self.epsilon = max(self.epsilon * self.exploration_decay, self.exploration_min)
        wanted = min(int(self.clients_per_round * (1 - (self.epsilon if new else 0)) + 1e-9), len(old))
        picked = []
        if wanted:
            score = dict(
                zip(
                    old,
                    textbook_scores(
                        [self.arms[c]["reward"] for c in old],
                        [self.arms[c]["last"] for c in old],
                        [1.0] * len(old),
                        self.round,
                        preferred=math.inf,
                        clip_bound=self.clip_bound,
                        alpha=0,
                    ),
                    strict=True,
                )
            )
            score = {c: score[c] * penalty[c] for c in old}
            ranking = sorted(old, key=lambda c: -score[c])
            cut = self.cut_off * score[ranking[min(wanted, len(old) - 1)]]
            good = [c for c in old if score[c] >= cut]
            drawn = weighted_sample(np.array([score[c] for c in good]), wanted, rng)
            picked = sorted(good[i] for i in drawn)
        self.exploited = picked
        places = min(len(new), self.clients_per_round - len(picked))
        promise = np.array([sizes[c] * penalty[c] for c in new])
        window = highest(promise, max(places, int(self.sample_window * places)), rng)
        fresh = [new[window[i]] for i in weighted_sample(promise[window], places, rng)]
        chosen = picked + fresh
        for pool in (allowed, available):
            rest = np.array([c for c in pool if c not in chosen], dtype=np.int64)
            missing = self.clients_per_round - len(chosen)
            if missing > 0:
                chosen += (rest if missing >= len(rest) else rng.choice(rest, missing, replace=False)).tolist()
        return sorted(chosen)

    def feedback(self, chosen, losses, sizes):
        """`losses` of those who answered; None: no number."""
        rewards = {c: sizes[c] * math.sqrt(x) for c, x in losses.items() if x is not None}
        for client in chosen:
            arm = self.arms[client]
            arm["last"], arm["count"] = self.round, arm["count"] + 1
            if client in rewards:
                arm |= {"reward": rewards[client], "explored": True}
            elif client in losses:
                arm["explored"] = False
            elif rewards:
                arm |= {"reward": sum(rewards.values()) / len(rewards), "explored": True}
        exploited = [rewards[c] for c in self.exploited if c in rewards]
        self.exploit_history.append(sum(exploited) / len(exploited) if exploited else 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pacer_step": 3, "blacklist_rounds": 4, "cut_off": 0.7},
        {"pacer": "paper", "pacer_seconds": 4.0, "pacer_step": 4, "exploration_decay": 0.8},
        {"speed": "profiled", "pacer_step": 5, "pacer_delta": 20.0, "sample_window": 2.0},
    ],
)
def test_rounds_are_those_of_the_slow_form(federation, options, seed):
    rng = np.random.default_rng(seed)
    seconds, said = rng.lognormal(2, 1, 30), rng.lognormal(1, 1, (30, 3))
    fed = federation(30, seed=seed, seconds=seconds, script={"device_time": said})
    oort = Oort(clients_per_round=5, **options)
    slow = SlowOort(oort)
    known = dict(enumerate(said.sum(axis=1).tolist())) if oort.speed == "profiled" else {}
    penalised = 0
    for _ in range(45):
        available = np.sort(rng.choice(30, 24, replace=False))
        drop, broken = (rng.choice(30, n, replace=False).tolist() for n in (4, 3))
        if oort.speed == "profiled":
            drop = []
            available = np.arange(30)
        lots = fed.view(available).rng
        played = fed.play(oort, available=available, drop=drop, nan={"squared_loss": broken})
        chosen = slow.choose(available.tolist(), fed.sizes.tolist(), known, lots)
        assert played.trained.tolist() == chosen
        told = played.replies[-1]
        values = zip(told.clients.tolist(), told["squared_loss"].tolist(), strict=True)
        slow.feedback(chosen, {c: None if math.isnan(x) else x for c, x in values}, fed.sizes.tolist())
        known |= {c: seconds[c] for c in told.clients.tolist()}
        limit = slow.preferred(known)
        penalised += sum(d > limit for d in known.values())
        assert oort.threshold == pytest.approx(slow.percentage if oort.pacer == "code" else slow.seconds)
    assert penalised, "the example has slow clients"
    assert slow.percentage != 30 or slow.seconds != 4.0, "the pacer has moved"


# --- durations -------------------------------------------------------------------------------------------


def test_slow_clients_are_chosen_less_once_they_were_measured(federation):
    fed = federation(
        10, sizes=[10] * 10, seed=2, seconds=[1.0] * 5 + [100.0] * 5, script={"squared_loss": np.ones(10)}
    )
    fed.run(Oort(clients_per_round=3, pacer_step=1000), 60)
    assert fed.history.trainings[:5].sum() > 4 * fed.history.trainings[5:].sum()


def test_without_time_measured_durations_change_nothing(federation):
    """All take no time at all: nobody is slower than another."""
    courses = [
        federation(20, seed=4, seconds=seconds).run(Oort(clients_per_round=4, speed=speed, pacer_step=3), 40)
        for speed, seconds in (("none", None), ("measured", None), ("measured", np.zeros(20)))
    ]
    for other in courses[1:]:
        assert all(a.same_as(b) for a, b in zip(courses[0], other, strict=True))


def test_what_was_measured_counts_more_than_what_was_said(federation):
    said = np.ones((4, 3))
    fed = federation(4, seconds=[5.0, 6.0, 7.0, 8.0], script={"device_time": said})
    selector = Oort(clients_per_round=2, speed="profiled")
    first = fed.play(selector)
    assert first.asks[0].clients.tolist() == [0, 1, 2, 3]
    assert [signal.name for signal in first.trains[0].report] == ["squared_loss"]
    durations = selector._durations(fed.view())
    for client in range(4):
        assert durations[client] == (fed.seconds[client] if client in first.trained else 3.0)
    assert not fed.play(selector).asks


def test_a_client_that_was_given_up_on_is_at_least_as_slow_as_the_server_waited(federation):
    fed, selector = federation(3), Oort(clients_per_round=2)
    fed.history.took(np.array([0, 1]), np.array([2.0, 30.0]))
    fed.history.waited(np.array([1, 2]), np.array([10.0, 10.0]))
    assert selector._durations(fed.view()).tolist() == [2.0, 30.0, 10.0]


def test_the_preferred_duration_is_in_the_record(federation):
    fed, selector = federation(8, seconds=np.arange(1.0, 9.0)), Oort(clients_per_round=8, round_threshold=50.0)
    fed.play(selector)
    view = fed.view()
    next(selector.round(view))
    assert view.notes == {"preferred_duration": 5.0}


# --- answers in later rounds -----------------------------------------------------------------------------


def asynchronous(selector, rounds, *, clients=30, in_flight=12, k=3, seed=0):
    speed = np.random.default_rng(3).lognormal(3, 1.0, clients)
    devices = Devices(speed, np.full(clients, 1e12), np.full(clients, 1e12))
    server = Server(
        selector, FedAvg(), TrialEngine(clients), devices=devices, pacing=Buffered(in_flight, k=k), seed=seed
    )
    return server, server.run(rounds)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_what_comes_later_is_learnt_all_the_same(k):
    selector = Oort(clients_per_round=4, pacer_step=4)
    server, result = asynchronous(selector, 40, k=k)
    used = np.unique([c for record in result.records for t in record.trainings for c in t.clients])
    # The last landing may have come after this method's last training: it is learnt of in the next round.
    selector._catch_up(server.view(server.engine.population, 40))
    assert np.flatnonzero(selector.explored).tolist() == used.tolist()
    losses = server.history.last("squared_loss")[used]
    np.testing.assert_allclose(selector.reward[used], server.engine.population.sizes[used] * np.sqrt(losses))
    assert sorted(selector.awaited[:, 0].astype(int)) == sorted(server.airspace.flights.clients.tolist())


def test_the_pacer_counts_the_times_that_the_server_waited():
    """The first round starts three cohorts, and waits once."""
    selector = Oort(clients_per_round=4, pacer_step=1000)
    asynchronous(selector, 30, k=4)
    assert (selector.rounds_done, len(selector.exploited)) == (32, 30)


def test_a_client_under_way_is_not_taken_for_one_that_failed():
    selector = Oort(clients_per_round=3)
    server, _ = asynchronous(selector, 1, in_flight=9, k=1)
    assert selector.explored.sum() == 1
    assert selector.explored[server.airspace.flights.clients].sum() == 0
