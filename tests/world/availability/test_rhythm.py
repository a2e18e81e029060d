"""The fitted rhythm: against a form that plays every client's life second by second, and against real sessions."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstest

from muster.core.randomness import generator
from muster.world import traces
from muster.world.availability import Watch, availabilities
from muster.world.availability import _rhythm_fit as fitting
from muster.world.availability import rhythm as module
from muster.world.availability.rhythm import (
    Characters,
    Rhythm,
    RhythmFollower,
    fitted,
    from_quantiles,
    left_of,
    lives,
    passed_by,
    states,
)

MASK = (1 << 64) - 1

#: Short lives, so that seconds can be counted.
SMALL = Characters(
    sessions=np.array([[1.0, 4.0, 30.0], [5.0, 5.0, 5.0]]),
    gaps=np.array([[0.2, 3.0, 9.0], [2.0, 2.0, 40.0]]),
    rhythm=np.linspace(-1, 1, 24),
)


def slow_word(key, index):
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow_uniform(word):
    return ((word >> 12) + 0.5) * 2.0**-52


def slow_quantile(row, chance):
    position = chance * (len(row) - 1)
    below = math.floor(position)
    return row[below] + (position - below) * (row[below + 1] - row[below])


def slow_mean(row):
    return sum((a + b) / 2 for a, b in itertools.pairwise(row)) / (len(row) - 1)


def slow_left(row, chance):
    """Of a session that is met at any moment: how much longer it lasts, with even steps between its quantiles."""
    pairs, grid = list(itertools.pairwise(row)), sorted({0.0, *row})

    def longer(x):
        """The share of sessions that last longer than x."""
        return 1 - sum(min(max((x - a) / (b - a), 0), 1) if b > a else x >= a for a, b in pairs) / len(pairs)

    def met(x):
        """The integral of `longer` until x: it is straight between any two quantiles."""
        ends = [*(end for end in grid if end < x), x]
        return sum((b - a) * (longer(a) + longer(math.nextafter(b, 0))) / 2 for a, b in itertools.pairwise(ends))

    def quantile(share):
        low, high = 0.0, row[-1]
        while high - low > 1e-10 * row[-1]:
            middle = (low + high) / 2
            low, high = (middle, high) if met(middle) < share * met(row[-1]) else (low, middle)
        return high

    position = chance * (len(row) - 1)
    below = math.floor(position)
    first, second = (quantile(step / (len(row) - 1)) for step in (below, below + 1))
    return first + (position - below) * (second - first)


def slow_gap(characters, second, amount):
    """When a gap is over, hour by hour: each takes away as much as it lasts, at its own speed."""
    while True:
        hour = second // 3600
        speed = math.exp(-characters.rhythm[hour % 24])
        room = ((hour + 1) * 3600 - second) * speed
        if amount < room:
            return second + amount / speed
        amount, second = amount - room, (hour + 1) * 3600


def slow_life(characters, key, opening, until):
    """A client's state in every second from 0 to `until`, by playing its stretches from their beginnings."""
    kind, online, second, end = opening
    on, off = characters.sessions[kind].tolist(), characters.gaps[kind].tolist()
    length = math.ceil(16 * (slow_mean(on) + slow_mean(off)))
    share = slow_mean(on) / (slow_mean(on) + slow_mean(off))
    found = dict.fromkeys(range(second), online)
    online, stretch = not online, 0
    while second < until:
        if stretch > 0:
            online = slow_uniform(slow_word(key, stretch * 65536)) < share
        number = 1
        while second < end:
            chance = slow_uniform(slow_word(key, stretch * 65536 + number))
            drawn = slow_left if stretch > 0 and number == 1 else slow_quantile
            lasting = drawn(on if online else off, chance)
            over = second + lasting if online else slow_gap(characters, second, lasting)
            for _ in range(max(1, round(over) - second)):
                if second < end:
                    found[second] = online
                    second += 1
            online, number = not online, number + 1
        stretch, end = stretch + 1, end + length
    return found


def next_change(life, now):
    return next(second for second in range(now + 1, now + 5000) if life[second] != life[now])


def slow_key(seed, client):
    root = generator(seed, "availability rhythm", 0).bit_generator.seed_seq.generate_state(1, np.uint64)[0]
    return slow_word(int(root), client)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), client=st.integers(0, 2**31), now=st.integers(0, 5000))
def test_any_moment_without_those_before_it(seed, client, now):
    key, openings = slow_key(seed, client), SMALL.openings
    mine = key >> 49
    kind, end, turn = (int(x[mine]) for x in (openings.characters, openings.ends, openings.turns))
    opening = kind, bool(openings.online[mine]), end, turn
    life = slow_life(SMALL, key, opening, now + 5000)
    online, change = states(SMALL, lives(SMALL, np.array([client]), seed), np.array([now]))
    assert online[0] == life[now]
    assert change[0] == next_change(life, now)


@pytest.mark.parametrize("number", [0, 1, 77, 32_767])
def test_openings_are_those_of_lives_that_began_long_before(number):
    midnight, length = 86_400, int(SMALL.stretches[number % 2])
    turn = 1 + int(slow_uniform(slow_word(slow_word(0, number), 0)) * length)
    life = slow_life(SMALL, slow_word(0, number), (number % 2, False, 0, turn), midnight + 5000)
    opening = SMALL.openings[np.array([number])]
    assert opening.characters[0] == number % 2
    assert opening.online[0] == life[midnight]
    assert opening.ends[0] == next_change(life, midnight) - midnight
    # The stretch in which that happens goes on for as long as there.
    assert 0 < opening.turns[0] - opening.ends[0] <= length
    assert (midnight + opening.turns[0] - turn) % length == 0


def test_time_0_is_a_midnight_as_any_other():
    """As many are there, and for as long, as a month later: nobody's life begins there."""
    openings, who, month = fitted().openings, lives(fitted(), np.arange(40_000), 3), 30 * 86_400
    online, change = states(fitted(), who, np.full(40_000, month))
    chances = []
    for character in range(100):
        first, later = openings.characters == character, who.characters == character
        assert abs(openings.online[first].mean() - online[later].mean()) < 0.15
        left = openings.ends[first & openings.online], (change - month)[later & online]
        chances.append(ks_2samp(*left).pvalue)
    assert min(chances) > 1e-4
    assert kstest(chances, "uniform").pvalue > 0.01
    assert abs(openings.online.mean() - online.mean()) < 0.01


@pytest.mark.parametrize("row", [[0.0, 1.0], [7.0, 7.0, 7.0], [0.0, 0.0, 5.0], [1.0, 4.0, 4.0, 90.0], [2.0, 3.0]])
def test_what_is_left_of_a_session_that_is_met(row):
    (left,) = left_of(np.array([row]))
    chances = np.array([0.0, 0.3, 0.5, 0.99])
    found = from_quantiles(left[None], np.zeros(4, dtype=np.int64), chances).tolist()
    assert found == pytest.approx([slow_left(row, chance) for chance in chances], abs=1e-5)


def test_what_is_left_by_meeting_sessions():
    """Sessions one after the other, met at moments that are drawn: E X² ÷ 2 E X is left on average."""
    rng, row = np.random.default_rng(0), np.array([[1.0, 2.0, 5.0, 30.0, 400.0]])
    ends = np.cumsum(from_quantiles(row, np.zeros(200_000, dtype=np.int64), rng.random(200_000)))
    moments = rng.uniform(0, ends[-1], 200_000)
    left = ends[np.searchsorted(ends, moments)] - moments
    steps = np.linspace(0, 1, 5)[1:-1]
    np.testing.assert_allclose(np.quantile(left, steps), left_of(row)[0, 1:-1], rtol=0.03)


def test_new_stretches_bring_no_more_sessions():
    """As many as there are cycles in the time that is watched. A session that begins anew with each stretch, where
    a long one would be met more often, makes them half as many again."""
    heavy = Characters(
        sessions=np.quantile(np.random.default_rng(0).pareto(1.5, 10_000) * 20 + 5, np.linspace(0, 1, 101))[None],
        gaps=np.full((1, 101), 10.0),
        rhythm=np.zeros(24),
    )
    cycle = heavy.stretches[0] / module.CYCLES
    owners, _ = fitting.simulated_lengths(heavy, np.full(1000, 100 * int(cycle)), seed=0)
    assert len(owners) / 1000 == pytest.approx(100, rel=0.05)


@settings(deadline=None)
@given(begin=st.integers(-500_000, 10**7), amount=st.floats(0.1, 10**6))
def test_gaps_pass_at_the_speed_of_the_hours(begin, amount):
    found = passed_by(SMALL, np.array([begin]), np.array([amount]))[0]
    assert found == pytest.approx(slow_gap(SMALL, begin, amount), abs=1e-4)


def test_following_says_the_same():
    """In steps of seconds and of days, through many stretches, for some and for all; and back in time again."""
    following, rng, now = RhythmFollower(SMALL, 300, 9), np.random.default_rng(1), 0.0
    everybody = np.arange(300)
    for step in range(120):
        now += float(rng.exponential((0.7, 20.0, 900.0, 50_000.0)[step % 4]))
        who = everybody if step % 3 else np.sort(rng.choice(300, 40, replace=False))
        online, change = following(now, who)
        theirs = states(SMALL, lives(SMALL, who, 9), np.full(len(who), int(now // 1)))
        assert online.tolist() == theirs[0].tolist()
        assert change.tolist() == theirs[1].tolist()
    online, change = following(17.5, everybody)
    theirs = states(SMALL, lives(SMALL, everybody, 9), np.full(300, 17))
    assert (online.tolist(), change.tolist()) == (theirs[0].tolist(), theirs[1].tolist())


def test_clients_do_not_depend_on_who_else_is_looked_at():
    rhythm, now = availabilities.build("rhythm", {}), 123_456.7
    there = rhythm.available(now, 3000, seed=5)
    assert set(there[there < 1000].tolist()) == set(rhythm.available(now, 1000, seed=5).tolist())
    some = np.array([2999, 4, 17])
    assert (rhythm.until(now, some, 5) > 0).tolist() == np.isin(some, there).tolist()
    assert set(rhythm.available(now, 1000, seed=6).tolist()) != set(there[there < 1000].tolist())


def test_sessions_end_when_they_are_said_to():
    rhythm, now, everybody = availabilities.build("rhythm", {}), 400_000.5, np.arange(500)
    assert isinstance(rhythm, Rhythm)
    online, changes = rhythm.states(now, everybody, 0)
    for client in range(0, 500, 9):
        who = everybody[client : client + 1]
        assert rhythm.states(changes[client] - 0.25, who, 0)[0][0] == online[client]
        assert rhythm.states(changes[client], who, 0)[0][0] != online[client]
    assert (changes > now).all()


def test_a_watch_says_the_same():
    rhythm, who = availabilities.build("rhythm", {}), np.arange(400)
    watch = Watch(rhythm, 400, 3)
    for now in (0.0, 1.5, 600.0, 90_000.25, 80_000.0, 1e6):
        assert watch.available(now).tolist() == rhythm.available(now, 400, 3).tolist()
        assert watch.until(now, who).tolist() == rhythm.until(now, who, 3).tolist()
        assert watch.next_start(now) == rhythm.next_start(now, 400, 3)


class Counted(np.ndarray):
    """Notes how many entries are compared."""

    seen: list[int] = []  # noqa: RUF012 (of the test)

    def __le__(self, other):
        self.seen.append(len(self))
        return np.asarray(self) <= other


def test_a_watch_looks_at_everybody_only_now_and_then():
    rhythm, clients = availabilities.build("rhythm", {}), 3000
    watch = Watch(rhythm, clients, 3)
    watch.there(0.0)
    watch._quiet = watch._quiet.view(Counted)
    for now in np.arange(1, 200) * 5.0:
        assert np.array_equal(np.flatnonzero(watch.there(now)), rhythm.available(now, clients, 3))
    looks = [count for count in Counted.seen if count == clients]
    assert len(Counted.seen) >= 199
    # For every seventeenth look: one to see who has changed, one to see who will.
    assert len(looks) < 2 * 199 / 10
    # A jump, and back in time: nothing that was noted misleads.
    for now in (2e5, 2e5 + 1, 100.0, 101.0, 5e5):
        assert np.array_equal(np.flatnonzero(watch.there(now)), rhythm.available(now, clients, 3))


def test_a_few_clients_may_leave_nobody_there():
    rhythm = availabilities.build("rhythm", {})
    empty = next(now for now in np.arange(0.0, 3e6, 1800.0) if not len(rhythm.available(now, 1, seed=1)))
    start = rhythm.next_start(empty, 1, seed=1)
    assert start > empty
    assert rhythm.available(start, 1, seed=1).tolist() == [0]
    assert not len(rhythm.available(start - 1, 1, seed=1))


def test_the_shipped_table():
    table = fitted()
    assert table.sessions.shape == table.gaps.shape == (100, fitting.QUANTILES)
    assert table.rhythm.shape == (24,)
    assert (np.diff(table.sessions) >= 0).all()
    assert (np.diff(table.gaps) >= 0).all()


def test_tables_are_read_as_they_were_written(tmp_path):
    SMALL.write(tmp_path / "table.csv")
    read = Characters.read((tmp_path / "table.csv").read_text())
    np.testing.assert_allclose(read.sessions, SMALL.sessions)
    np.testing.assert_allclose(read.gaps, SMALL.gaps)
    np.testing.assert_allclose(read.rhythm, SMALL.rhythm, rtol=1e-3)


def some_devices(recorded, devices):
    rows = [recorded.of(device) for device in devices]
    starts = np.concatenate([[0], np.cumsum([len(begin) for begin, _ in rows])]).astype(np.int64)
    begin, end = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    return traces.Sessions(starts, begin, end, recorded.period[devices])


def real_lengths(recorded):
    """Lengths of sessions, and weights with which every device counts alike."""
    lengths = [fitting.lengths(recorded, device)[0] for device in range(len(recorded))]
    return np.concatenate(lengths), np.concatenate([np.full(len(own), 1 / len(own)) for own in lengths])


def simulated_lengths(characters, clients, seed, periods):
    """The same of simulated clients, each watched for as long as one of the devices was."""
    watched = periods[np.arange(clients) % len(periods)].astype(np.int64)
    owners, lengths = fitting.simulated_lengths(characters, watched, seed)
    return lengths, 1 / np.bincount(owners)[owners]


def weighted_distance(first, second):
    """The Kolmogorov–Smirnov distance of two weighted samples."""
    values = np.unique(np.concatenate([first[0], second[0]]))
    curves = []
    for sample, weights in (first, second):
        order = np.argsort(sample)
        below = np.concatenate([[0], np.cumsum(weights[order])]) / weights.sum()
        curves.append(below[np.searchsorted(sample[order], values, side="right")])
    return np.abs(curves[0] - curves[1]).max()


def hours_distance(first, second):
    """The Kolmogorov–Smirnov distance of two distributions of online time over the hours of the day."""
    return np.abs(np.cumsum(first / first.sum()) - np.cumsum(second / second.sum())).max()


@pytest.fixture(scope="module")
def recorded():
    return traces.sessions("fedscale_100_clients.json")


def test_the_distance_is_scipys_where_all_weights_are_alike():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, 50).astype(float), rng.integers(2, 12, 70).astype(float)
    ours = weighted_distance((first, np.ones(50)), (second, np.ones(70)))
    assert ours == pytest.approx(ks_2samp(first, second).statistic)


def by_session(sample):
    """With every session counting alike."""
    return sample[0], np.ones(len(sample[0]))


@pytest.mark.realdata
@pytest.mark.parametrize("held_out", [0, 1])
def test_devices_that_the_fit_has_not_seen(recorded, held_out):
    seen, unseen = (some_devices(recorded, np.arange(start, 100, 2)) for start in (1 - held_out, held_out))
    fit = fitting.fit(seen)
    real, others = real_lengths(unseen), real_lengths(seen)
    simulated = [simulated_lengths(fit, 2000, seed, unseen.period) for seed in (1, 2, 3)]
    assert np.mean([weighted_distance(real, own) for own in simulated]) < 0.1
    # By session the real halves themselves are 0.11 apart, and the fit adds little to that.
    floor = weighted_distance(by_session(real), by_session(others))
    assert np.mean([weighted_distance(by_session(real), by_session(own)) for own in simulated]) < floor + 0.025
    hours = fitting.hourly_shares(unseen), fitting.simulated_shares(fit, 4000, seed=1)
    assert hours_distance(*hours) < 0.1
    assert np.abs(hours[0] - hours[1]).max() < 0.12  # the shares themselves; the two halves differ by up to 0.1


@pytest.mark.realdata
def test_every_device_held_out_once(recorded):
    """Marginal calibration: all devices, against clients of five fits that each have not seen a fifth of them."""
    simulated, hours = [], []
    for fold in range(5):
        seen = np.flatnonzero(np.arange(100) % 5 != fold)
        fit = fitting.fit(some_devices(recorded, seen))
        simulated.append(simulated_lengths(fit, 1000, fold, recorded.period[fold::5]))
        hours.append(fitting.simulated_shares(fit, 2000, seed=fold))
    real, pooled = real_lengths(recorded), tuple(np.concatenate(parts) for parts in zip(*simulated, strict=True))
    assert weighted_distance(real, pooled) < 0.1
    assert weighted_distance(by_session(real), by_session(pooled)) < 0.05
    assert hours_distance(fitting.hourly_shares(recorded), np.mean(hours, axis=0)) < 0.02


@pytest.mark.realdata
def test_real_halves_are_often_further_apart_than_the_limit(recorded):
    """Why devices that were held out are not judged by session: no copy of one half can be nearer to the other."""
    rng, apart = np.random.default_rng(0), {"sessions": [], "devices": []}
    for _ in range(100):
        devices = rng.permutation(100)
        first, second = (real_lengths(some_devices(recorded, half)) for half in (devices[:50], devices[50:]))
        apart["sessions"].append(ks_2samp(first[0], second[0], method="asymp").statistic)
        apart["devices"].append(weighted_distance(first, second))
    assert 0.08 < np.median(apart["sessions"]) < 0.12
    assert np.median(apart["devices"]) < 0.08


@pytest.mark.realdata
def test_a_fit_is_no_farther_from_unseen_devices_than_the_devices_it_was_made_from(recorded):
    rng, more = np.random.default_rng(0), {"sessions": [], "devices": []}
    for seed in range(10):
        devices = rng.permutation(100)
        seen, unseen = (some_devices(recorded, half) for half in (devices[:50], devices[50:]))
        simulated = simulated_lengths(fitting.fit(seen), 1000, seed, unseen.period)
        for count, counted in (("sessions", by_session), ("devices", lambda sample: sample)):
            real, others, ours = (
                counted(sample) for sample in (real_lengths(unseen), real_lengths(seen), simulated)
            )
            more[count].append(weighted_distance(real, ours) - weighted_distance(real, others))
    assert np.mean(more["sessions"]) < 0.01
    assert np.mean(more["devices"]) < 0.01


def some_days(recorded, later):
    """The first half of every device's whole days, or what comes after it."""
    rows, periods = [], []
    for device in range(len(recorded)):
        middle = recorded.period[device] // 86_400 // 2 * 86_400
        low, high = (middle, recorded.period[device]) if later else (0, middle)
        begin, end = (np.clip(moments, low, high) - low for moments in recorded.of(device))
        if (end > begin).any():
            rows.append((begin[end > begin], end[end > begin]))
            periods.append(high - low)
    starts = np.concatenate([[0], np.cumsum([len(begin) for begin, _ in rows])]).astype(np.int64)
    begin, end = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    return traces.Sessions(starts, begin, end, np.array(periods, dtype=np.float64))


@pytest.mark.realdata
@pytest.mark.parametrize("later", [False, True])
def test_days_that_the_fit_has_not_seen(recorded, later):
    seen, unseen = some_days(recorded, later), some_days(recorded, not later)
    fit = fitting.fit(seen)
    real = real_lengths(unseen)
    simulated = [simulated_lengths(fit, 2000, seed, unseen.period) for seed in (1, 2, 3)]
    assert np.mean([weighted_distance(by_session(real), by_session(own)) for own in simulated]) < 0.05
    assert np.mean([weighted_distance(real, own) for own in simulated]) < 0.1
    assert hours_distance(fitting.hourly_shares(unseen), fitting.simulated_shares(fit, 4000, seed=1)) < 0.05


@pytest.mark.realdata
def test_the_shipped_fit_is_that_of_all_devices(recorded):
    lengths, weights = real_lengths(recorded)
    simulated, own = simulated_lengths(fitted(), 2000, 1, recorded.period)
    assert weighted_distance((lengths, weights), (simulated, own)) < 0.05
    assert ks_2samp(lengths, simulated).statistic < 0.03  # every session counts alike
    # As many as devices have in that time, were they watched for as long.
    expected = np.mean([len(recorded.of(device)[0]) / recorded.period[device] for device in range(100)])
    assert len(simulated) / 2000 == pytest.approx(expected * recorded.period.mean(), rel=0.07)
    real, ours = fitting.hourly_shares(recorded), fitting.simulated_shares(fitted(), 4000, seed=1)
    assert hours_distance(real, ours) < 0.02
    assert np.abs(real - ours).max() < 0.08


@pytest.mark.bench
def test_a_million_clients():
    rhythm, start = availabilities.build("rhythm", {}), time.perf_counter()
    there = rhythm.available(300_000.0, 1_000_000, seed=0)
    assert time.perf_counter() - start < 10
    assert 0.6 < len(there) / 1e6 < 0.9


def test_stretches_hold_their_draws():
    # A session and a gap each take a draw: 32 on average in a stretch.
    assert 1000 * 2 * module.CYCLES < module._DRAWS
