"""Pacings as pure decisions, and the landing against a slow walk through events."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.engine.trial import small_spec
from muster.pacing import pacings
from muster.pacing.base import Wait, landing
from muster.pacing.buffered import Buffered
from muster.pacing.deadline import Deadline
from muster.pacing.over_select import OverSelect
from muster.pacing.pisces import PiscesPace, aggregation_interval

NOBODY = np.empty(0)


def population(clients: int = 20) -> Population:
    return Population(np.full(clients, 10), 4, small_spec(4), rounds=10)


@given(st.integers(1, 10_000), st.floats(1, 5))
def test_over_selection_uses_as_many_as_were_wanted(wanted, factor):
    pacing = OverSelect(factor)
    asked = pacing.asked(wanted)
    assert wanted <= asked < factor * wanted + 1
    assert pacing.wait(asked, NOBODY).answers == wanted


def test_a_deadline_from_the_distribution():
    durations = np.array([4.0, 1.0, 3.0, 2.0, 5.0])
    assert Deadline(quantile=0.5).wait(3, durations) == Wait(3, seconds=3.0)
    assert Deadline(quantile=0.5).wait(3, NOBODY) == Wait(3)


def test_a_deadline_does_not_creep_down():
    """Those that were late stay in the distribution, above every deadline."""
    true = np.arange(1.0, 11.0)
    known = true.copy()
    for _ in range(20):
        seconds = Deadline(quantile=0.7).wait(10, known).seconds
        known = np.where(true <= seconds, true, np.inf)
    assert seconds == 7.0


@pytest.mark.parametrize(
    ("pacing", "message"),
    [
        (OverSelect(0.9), "pacing.factor"),
        (OverSelect(math.nan), "pacing.factor"),
        (Deadline(), "either pacing.seconds or pacing.quantile"),
        (Deadline(seconds=1.0, quantile=0.5), "either pacing.seconds or pacing.quantile"),
        (Deadline(seconds=-1.0), "pacing.seconds"),
        (Deadline(seconds=math.inf), "pacing.seconds"),
        (Deadline(quantile=1.5), "pacing.quantile"),
        (Deadline(seconds=1.0, max_staleness=-1), "max_staleness"),
        (Buffered(0), "pacing.in_flight"),
        (Buffered(4, k=0), "pacing.k"),
        (Buffered(4, k=5), "in_flight is 4, but pacing.k waits for 5"),
        (Buffered(21), "the federation has 20 clients"),
        (Buffered(4, max_staleness=-2), "max_staleness"),
        (PiscesPace(0), "pacing.in_flight"),
        (PiscesPace(21), "the number of clients"),
        (PiscesPace(4, bound=0.0), "pacing.bound"),
        (PiscesPace(4, first_latency=math.inf), "pacing.first_latency"),
        (PiscesPace(4, max_staleness=-1), "max_staleness"),
    ],
)
def test_bad_options_are_refused(pacing, message):
    with pytest.raises(ConfigError, match=message):
        pacing.check(population())


def test_every_pacing_is_listed():
    assert set(pacings.names()) == {"synchronous", "over-select", "deadline", "buffered", "pisces"}


def slow_landing(ends, ties, *, counts, own, wait, now):
    """One event after the other, as they happen."""
    limit, taken, moment, answers = now + wait.seconds, [], now, 0
    waiting = [i for i in range(len(ends)) if own[i] or not wait.own]
    if wait.answers <= 0 or not waiting:
        return [], now
    for event in sorted(range(len(ends)), key=lambda i: (ends[i], ties[i])):
        if ends[event] > limit:
            return taken, limit
        taken.append(event)
        moment = max(moment, ends[event])
        if event in waiting:
            waiting.remove(event)
            answers += bool(counts[event])
            if answers == wait.answers or not waiting:
                return taken, moment
    raise AssertionError("somebody is always waited for")


flights = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 2.5, 3.0, 7.0]), st.floats(0, 1), st.booleans(), st.booleans()),
    max_size=12,
)


@given(flights, st.integers(0, 13), st.booleans(), st.sampled_from([0.5, 1.0, 2.0, math.inf]))
def test_landing_is_what_happens_event_by_event(flights, answers, own_only, seconds):
    columns = list(zip(*flights, strict=True)) or [(), (), (), ()]
    ends, ties = np.array(columns[0], dtype=float), np.array(columns[1], dtype=float)
    counts, own = (np.array(column, dtype=bool) for column in columns[2:])
    wait = Wait(answers, own=own_only, seconds=seconds)
    taken, moment = landing(ends, ties, counts=counts, own=own, wait=wait, now=1.0)
    slow, slow_moment = slow_landing(ends, ties, counts=counts, own=own, wait=wait, now=1.0)
    assert moment == slow_moment
    assert [(ends[i], ties[i]) for i in taken] == [(ends[i], ties[i]) for i in slow]


def test_how_many_train_at_the_same_time_has_no_default():
    with pytest.raises(ConfigError, match=r"pacing\.in_flight"):
        pacings.build("buffered", {"k": 3}, "pacing")


@given(
    flights.filter(bool),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.5, 3.0, 20.0]),
    st.sampled_from([1.0, 2.5, math.inf]),
)
def test_the_server_goes_on_at_the_first_moment_that_is_late_enough(flights, answers, own_only, least, seconds):
    columns = list(zip(*flights, strict=True))
    ends, ties = np.array(columns[0], dtype=float), np.array(columns[1], dtype=float)
    counts, own = (np.array(column, dtype=bool) for column in columns[2:])
    wait, now = Wait(answers, own=own_only, seconds=seconds, least=least), 1.0
    taken, moment = landing(ends, ties, counts=counts, own=own, wait=wait, now=now)
    waited = own if own_only else np.ones(len(ends), dtype=bool)
    if not waited.any():
        assert (len(taken), moment) == (0, now)
        return
    limit = now + seconds

    def may_go(t):
        everybody = bool((ends[waited] <= t).all())
        enough = bool((counts & waited & (ends <= t)).sum() >= answers)
        return everybody or (enough and t >= now + least) or t >= limit

    moments = [t for t in sorted({now, now + least, limit, *ends.tolist()}) if now <= t <= limit]
    assert moment == next(t for t in moments if may_go(t))
    assert (ends[taken] <= moment).all()
    left = np.setdiff1d(np.arange(len(ends)), taken)
    assert (ends[left] >= moment).all(), "nobody who had ended before is left"
    assert not waited.any() or may_go(moment)


# --- Pisces ----------------------------------------------------------------------------------------------


def test_the_interval_of_a_worked_example():
    assert aggregation_interval(np.array([30.0, 120.0, 60.0]), 4, unknown=0.0) == 30.0
    assert aggregation_interval(np.array([30.0, np.nan]), 4, unknown=180.0) == 45.0
    assert aggregation_interval(NOBODY, 4, unknown=180.0) == 0.0


def test_what_pisces_waits_for():
    known, at_work = np.array([5.0, np.inf, 80.0]), np.array([np.nan, 20.0])
    assert PiscesPace(8).wait_for(2, known, at_work) == Wait(1, own=False, least=10.0)
    assert PiscesPace(8, bound=2.0, first_latency=50.0).wait_for(2, known, at_work).least == 25.0
    assert PiscesPace(8).wait_for(2, NOBODY, np.array([np.nan])).least == 0.0
    assert PiscesPace(8).wait(2, known).least == 10.0
