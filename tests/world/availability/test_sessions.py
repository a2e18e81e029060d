"""Recorded sessions: against a form that counts seconds, and files that are wrong."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import DataError
from muster.world import traces
from muster.world.availability import Watch, availabilities
from muster.world.availability.sessions import SessionFollower, lookup, repeats_after, states_of_copies

DAY = traces.DAY


@st.composite
def recordings(draw):
    """Some devices with sessions at whole seconds, perhaps touching each other or the ends, perhaps none."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        period = draw(st.integers(2, 25))
        cuts = sorted(draw(st.lists(st.integers(0, period), max_size=8)))
        cuts = cuts[: len(cuts) // 2 * 2]
        found.append({"id": number, "active": cuts[::2], "inactive": cuts[1::2], "finish": period})
    return found


def compiled(found):
    rows = [traces._sessions_of("test", entry) for entry in found]
    starts = np.concatenate([[0], np.cumsum([len(begin) for begin, _ in rows])]).astype(np.int64)
    begin, end = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
    return traces.Sessions(starts, begin, end, np.array([float(entry["finish"]) for entry in found]))


def slow_online(entry, second):
    moment = second % entry["finish"]
    return any(a <= moment < b for a, b in zip(entry["active"], entry["inactive"], strict=True))


def slow_remaining(entry, second):
    """Seconds until the state changes, one by one; inf where a whole period brings no change."""
    state = slow_online(entry, second)
    for later in range(1, entry["finish"] + 1):
        if slow_online(entry, second + later) != state:
            return later
    return np.inf


@settings(deadline=None)
@given(recordings())
def test_the_search_says_what_counting_seconds_says(found):
    recorded = compiled(found)
    for device, entry in enumerate(found):
        phase = np.arange(entry["finish"], dtype=np.float64)
        online, change = lookup(recorded, np.full(len(phase), device), phase)
        assert online.tolist() == [slow_online(entry, int(t)) for t in phase]
        assert (change - phase).tolist() == [slow_remaining(entry, int(t)) for t in phase]


def test_between_whole_seconds():
    recorded = compiled([{"active": [10], "inactive": [20], "finish": 100}])
    online, change = lookup(recorded, np.zeros(4, dtype=np.int64), np.array([9.75, 10.0, 19.5, 20.0]))
    assert online.tolist() == [False, True, True, False]
    assert change.tolist() == [10.0, 20.0, 20.0, 110.0]


def write(tmp_path, found):
    file = tmp_path / "trace.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    return availabilities.build("sessions", {"file": str(file)})


def test_copies_of_a_device_live_whole_days_ahead(tmp_path):
    # Online only on the first day of three.
    availability = write(tmp_path, [{"id": 1, "active": [0], "inactive": [DAY], "finish": 3 * DAY}])
    assert availability.available(100.0, 7, seed=0).tolist() == [0, 3, 6]
    assert availability.available(100.0 + DAY, 7, seed=0).tolist() == [2, 5]
    assert availability.until(100.0, np.array([3, 1]), seed=0).tolist() == [DAY - 100.0, 0.0]


def test_the_clock_moves_to_the_next_session_when_nobody_is_there_for_a_day(tmp_path):
    availability = write(tmp_path, [{"id": 1, "active": [2 * DAY], "inactive": [2 * DAY + 60], "finish": 3 * DAY}])
    assert len(availability.available(5.0, 1, seed=0)) == 0
    start = availability.next_start(5.0, 1, seed=0)
    assert start == 2 * DAY
    assert availability.available(start, 1, seed=0).tolist() == [0]
    assert availability.next_start(start, 1, seed=0) == start
    assert availability.next_start(start + 60, 1, seed=0) == 5 * DAY


def test_nobody_ever(tmp_path):
    found = [
        {"id": 1, "active": [], "inactive": [], "finish": 9},
        {"id": 2, "active": [1], "inactive": [2], "finish": 9},
    ]
    availability = write(tmp_path, found)
    lonely = [seed for seed in range(20) if availability.next_start(0.0, 1, seed) == np.inf]
    assert 0 < len(lonely) < 20


@settings(deadline=None)
@given(found=recordings(), steps=st.lists(st.integers(-5, 40), min_size=1, max_size=12), seed=st.integers(0, 3))
def test_a_watch_says_the_same(tmp_path_factory, found, steps, seed):
    if not any(a < b for entry in found for a, b in zip(entry["active"], entry["inactive"], strict=True)):
        return
    availability = write(tmp_path_factory.mktemp("trace"), found)
    watch, now, everybody = Watch(availability, 9, seed), 0.0, np.arange(9)
    for step in steps:
        now = max(0.0, now + step)
        assert watch.available(now).tolist() == availability.available(now, 9, seed).tolist()
        assert watch.until(now, everybody).tolist() == availability.until(now, everybody, seed).tolist()
        assert watch.next_start(now) == availability.next_start(now, 9, seed)


@pytest.mark.parametrize("finish", [3 * DAY, 2 * DAY + 600, 5 * DAY / 7, 1e6 + 0.125])
@pytest.mark.parametrize("clients", [1, 50, 3000])
def test_following_says_the_same(tmp_path, finish, clients):
    """Recordings that repeat after few copies, after many, and never; few clients and many, some and all."""
    found = [
        {"id": number, "active": [number * 500.5], "inactive": [number * 500.5 + 9_000], "finish": finish}
        for number in range(7)
    ]
    availability, everybody = write(tmp_path, found), np.arange(clients)
    follower = availability.follower(clients, 4)
    for now in (0.0, 1234.567, 86_400.25, 777_777.7):
        for who in (everybody, everybody[:: max(1, clients // 5)], everybody[:0]):
            ours, theirs = follower(now, who), availability.states(now, who, 4)
            assert ours[0].tolist() == theirs[0].tolist()
            assert ours[1].tolist() == theirs[1].tolist()


@pytest.mark.parametrize(
    ("finish", "copies"), [(DAY, 1), (6 * DAY, 6), (DAY / 2, 1), (100_000, 125), (0.5, np.inf)]
)
def test_after_how_many_days_a_recording_is_at_the_same_place(finish, copies):
    recorded = compiled([{"active": [0], "inactive": [0.25], "finish": finish}])
    assert repeats_after(recorded).tolist() == [copies]
    first = np.arange(8)
    if copies < np.inf:
        later = first + int(copies) * 31_415
        ours, theirs = (states_of_copies(recorded, 0 * first, c, 12.34) for c in (first, later))
        assert ours[1].tolist() == theirs[1].tolist()


def test_what_is_alike_is_looked_up_once(tmp_path):
    """Six days of two devices are twelve things to know, however many clients there are."""
    found = [{"id": number, "active": [5], "inactive": [9], "finish": 6 * DAY} for number in range(2)]
    write(tmp_path, found)
    following = SessionFollower(traces.sessions(str(tmp_path / "trace.json")), 100_000, 0)
    assert len(following._devices) == 12


def test_the_hundred_thousandth_copy_is_as_exact_as_the_first(tmp_path):
    availability = write(tmp_path, [{"id": 1, "active": [10], "inactive": [20], "finish": DAY}])
    now = 19.999999
    for client in (0, 1, 200_000):
        assert availability.until(now, np.array([client]), 0)[0] == pytest.approx(20 - now, rel=1e-6)


def test_a_session_begins_at_the_same_moment_whenever_that_is_asked(tmp_path):
    """Also for a watch that was begun later, as after a resume: else its run would not have the same bits."""
    begin = [5000 + day * DAY for day in range(13)]
    recording = {"id": 1, "active": begin, "inactive": [b + 100 for b in begin], "finish": 13 * DAY}
    availability, rng, everybody = write(tmp_path, [recording]), np.random.default_rng(0), np.arange(13)
    for _ in range(50):
        watch, now = Watch(availability, 13, 0), float(rng.uniform(0, 1000))
        watch.there(now)
        later = now + float(rng.uniform(0, 3000))
        assert availability.states(now, everybody, 0)[1].tolist() == [5000.0] * 13
        assert watch.next_start(later) == Watch(availability, 13, 0).next_start(later) == 5000.0


def entry(**changes):
    return {"id": 7, "active": [10, 50], "inactive": [20, 60], "finish": 100} | changes


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([entry(active=[10, 15])], "device 7 .*sessions overlap: one lasts until 20, the next begins at 15"),
        ([entry(active=[50, 10], inactive=[60, 20])], "sessions overlap"),
        ([entry(active=[-10, 50])], "negative time"),
        ([entry(), entry(id=8, inactive=[5, 60])], "device 8 .*ends at 5, before it begins at 10"),
        ([entry(inactive=[20])], "2 sessions begin and 1 end"),
        ([entry(finish=55)], "ends at 60, after 'finish'"),
        ([entry(finish=0)], "'finish' is 0"),
        ([entry(active=None)], "'active' is missing"),
        ([entry(active=["a", "b"])], "'active' is missing or is not made of numbers"),
        ([entry(active=[True, 50])], "not made of numbers"),
        ([entry(active=[], inactive=[])], "no device is ever online"),
        ("[]", "no devices"),
        ("", "is empty"),
    ],
)
def test_bad_recordings_are_named_before_round_1(tmp_path, found, words):
    with pytest.raises(DataError, match=words):
        write(tmp_path, found).check(None)


def test_touching_and_empty_sessions(tmp_path):
    availability = write(tmp_path, [entry(active=[10, 20, 40], inactive=[20, 30, 40])])
    assert availability.until(12.0, np.array([0]), 0).tolist() == [18.0]
    assert availability.next_start(31.0, 1, 0) == 110.0


@pytest.mark.realdata
def test_the_real_recordings(tmp_path):
    availability = availabilities.build("sessions", {"file": "fedscale_100_clients.json"})
    recorded = traces.sessions("fedscale_100_clients.json")
    assert len(recorded) == 100
    shares = [np.subtract(*recorded.of(device)[::-1]).sum() / recorded.period[device] for device in range(100)]
    assert np.median(shares) == pytest.approx(0.74, abs=0.01)  # as the data's description says
    hours = [len(availability.available(3600.0 * hour, 1000, 0)) / 1000 for hour in range(0, 24 * 5, 5)]
    assert np.mean(hours) == pytest.approx(np.mean(shares), abs=0.02)
