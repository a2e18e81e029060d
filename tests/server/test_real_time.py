"""Waiting for what is not known yet decides as the rule does that knows everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.base import TrainOrder
from muster.engine.live import Arrival, Live, LostAnswer
from muster.engine.task import Place
from muster.pacing.base import Wait, landing
from muster.selection.base import Train
from muster.server.flights import Airspace, Dispatch
from muster.server.ledger import Load
from muster.server.real_time import RealClock
from muster.world.clock import Errand

POLL = 0.25


class Scripted(Live):
    """Trainings that end at known moments of a clock that a pause moves on."""

    def __init__(self, ends: dict[int, float], problems: dict[int, LostAnswer]) -> None:
        self.now, self._ends, self._problems = 50.0, ends, problems
        self._told: set[int] = set()

    def seconds(self) -> float:
        return self.now

    def pause(self) -> None:
        self.now += POLL

    def arrivals(self) -> list[Arrival]:
        new = {c for c, end in self._ends.items() if 50.0 + end <= self.now} - self._told
        self._told |= new
        return [Arrival(Place(0, 0, 0), client, self._problems.get(client)) for client in sorted(new)]

    def answers(self, orders):
        raise AssertionError

    def give_up(self, order) -> None:
        raise AssertionError

    def too_late(self):
        raise AssertionError


def airspace_of(clock: RealClock, clients: int) -> Airspace:
    everybody = np.arange(clients)
    airspace = Airspace()
    order = TrainOrder(everybody, np.zeros(1, np.float32), Place(0, 0, 0), 0.1)
    trips = clock.sending(Errand(everybody, 0, 0, 0, (0, 0)))
    ties = np.random.default_rng(clients).random(clients)
    airspace.take_off(Dispatch(Train(everybody), order, 0, Load(0, 0)), clock.now, trips, ties)
    return airspace


@given(
    ends=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    failing=st.sets(st.integers(0, 7)),
    answers=st.integers(1, 9),
    seconds=st.one_of(st.just(np.inf), st.floats(0.1, 5.0)),
    least=st.one_of(st.just(0.0), st.floats(0.1, 4.0)),
)
@settings(max_examples=200, deadline=None)
def test_who_has_landed_is_what_the_rule_says_that_knows_when_everybody_arrives(
    ends, failing, answers, seconds, least
):
    moments = {client: end / 4 for client, end in enumerate(ends)}
    live = Scripted(moments, {client: LostAnswer("broken") for client in failing})
    clock = RealClock(live, None, 0)
    airspace = airspace_of(clock, len(ends))
    began, wait = clock.now, Wait(answers, seconds=seconds, least=least)
    own = np.ones(len(ends), dtype=np.bool_)

    def decide(flights):
        return landing(flights.ends, flights.ties, counts=flights.answers, own=own, wait=wait, now=began)

    landed = clock.land(airspace, decide)
    # Told when everybody arrived, as it was seen in the end.
    while not np.isfinite(airspace.flights.ends).all():
        live.pause()
        clock._note_arrivals(airspace, clock._look())
    ended, moment = decide(airspace.flights)
    assert ended.tolist() == landed.ended.tolist()
    assert moment == landed.moment
    assert set(landed.problems) == failing.intersection(ended.tolist())
    # And nobody was waited for in vain: the moment is not later than the rule's by more than a look.
    exact = np.array([moments[client] for client in range(len(ends))]) + began
    wanted = landing(exact, airspace.flights.ties, counts=airspace.flights.answers, own=own, wait=wait, now=began)
    assert wanted[1] <= moment <= wanted[1] + 2 * POLL


def test_what_is_seen_at_two_looks_has_an_order_even_if_the_clock_stands_still():
    clock = RealClock(Scripted({}, {}), None, 0)
    looks = [clock._look() for _ in range(5)]
    assert looks == sorted(set(looks))


def test_after_a_pause_of_the_server_time_goes_on_where_it_was():
    live = Scripted({}, {})
    clock = RealClock(live, None, 0)
    live.now += 1e6  # nobody was there
    clock.go_on(33.0, Airspace())
    live.now += 2.0
    clock._tick()
    assert clock.now == pytest.approx(35.0)
    assert clock.observed.moments == [clock.now]
