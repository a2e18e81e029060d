"""Tools for those who write a selector: a made-up federation, and a contract that selectors must keep."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from muster.core.component import state
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.selection.size_weighted import SizeWeighted
from muster.server.testing import FakeFederation, Played, check_selector
from muster.signals.losses import Loss, SquaredLoss

#: Goes on from one selector to the next, as a global generator would.
TICKS = itertools.count()


@dataclass
class Own(Selector):
    """Trains three clients, and does one thing wrong."""

    mistake: str
    _rounds: int = state(lambda: 0)

    def round(self, fed: View) -> Plan:
        self._rounds += 1
        few = fed.sample(3)
        match self.mistake:
            case "clients of its own mind":
                yield Train(np.roll(fed.available, next(TICKS))[:3])
            case "weights of its own mind":
                yield Train(few, weights=np.full(len(few), 1.0 + next(TICKS)))
            case "multiplicities of its own mind":
                yield Train(few, multiplicity=np.full(len(few), 1 + next(TICKS)))
            case "learning rates of its own mind":
                yield Train(few, lr_factors=np.full(len(few), 1.0 + next(TICKS)))
            case "a weight too many":
                yield Train(few, weights=np.ones(len(few) + 1))
            case "a client too many":
                yield Train(fed.sample(4))
            case "no client":
                yield Train(few[:0])
            case "no training":
                return
            case "a client twice":
                yield Train(np.append(few, few[0]))
            case "absent clients":
                yield Train(np.arange(3))
            case "ids that are no integers":
                yield Train(few.astype(np.float64))
            case "nobody rather than few":
                yield Train(few if len(fed.available) > 2 else few[:0])
            case "more for newcomers":
                yield Train(fed.sample(3 if fed.clients == 12 else 4))
            case "a loss with the training":
                yield Train(few, (Loss(),))
            case "a question after the work":
                yield Ask(few, (SquaredLoss(),))
            case "a pull for nobody":
                yield Train(few, pull_factors=np.ones(len(few) + 1))
            case "an eye on the end":
                yield Train(few if fed.round < fed.rounds // 50 else few[:2])
            case "state that is not saved":
                yield Train(few[: 1 + self._rounds % 2])
            case "trust in answers":
                replies = yield Ask(few, (Loss(),))
                yield Train(replies.clients[[np.argmax(replies["loss"])]])
            case _:
                yield Train(few)

    def state_dict(self) -> dict[str, Any]:
        return {"_rounds": 0} if self.mistake == "state that is not saved" else super().state_dict()


@pytest.mark.parametrize(
    ("mistake", "why"),
    [
        ("clients of its own mind", "the same seed gives a different course"),
        ("weights of its own mind", "the same seed gives a different course"),
        ("multiplicities of its own mind", "the same seed gives a different course"),
        ("learning rates of its own mind", "the same seed gives a different course"),
        ("a weight too many", "weights do not fit the clients"),
        ("a client too many", "too many or no clients"),
        ("no client", "too many or no clients"),
        ("no training", "a round without training"),
        ("a client twice", "a client twice in one request"),
        ("absent clients", "a client that is not available"),
        ("ids that are no integers", "client ids are float64"),
        ("nobody rather than few", "the only available client must train"),
        ("more for newcomers", "newcomers confuse the selector"),
        ("a loss with the training", "'loss' is not available in a Train"),
        ("a question after the work", "'squared_loss' is not available in a Ask"),
        ("a pull for nobody", "pull_factors do not fit the clients"),
        ("an eye on the end", "say so in depends_on_length"),
        ("state that is not saved", "restored state takes a different course"),
    ],
)
def test_a_selector_that_breaks_the_contract_is_told_how(mistake: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_selector(lambda: Own(mistake), 3)


def test_a_selector_that_takes_answers_for_granted_does_not_pass() -> None:
    with pytest.raises(ValueError, match="empty sequence"):  # its own error, when no client answers
        check_selector(lambda: Own("trust in answers"), 3)


@pytest.mark.parametrize(
    "made",
    [RandomSelection(3), SizeWeighted(3), SizeWeighted(3, replace=True), Own("no mistake")],
    ids=["random", "weights", "multiplicities", "own"],
)
def test_a_selector_that_keeps_the_contract_passes(made: Selector) -> None:
    check_selector(lambda: type(made)(**made.get_params()), 3)


def test_sizes_are_made_up_from_20_to_199_and_the_same_with_the_same_seed() -> None:
    sizes = FakeFederation(20_000).sizes
    assert (sizes.min(), sizes.max()) == (20, 199)
    assert np.array_equal(sizes, FakeFederation(20_000).sizes)
    assert not np.array_equal(sizes, FakeFederation(20_000, seed=1).sizes)
    assert FakeFederation(3, sizes=[5, 6, 7]).sizes.tolist() == [5, 6, 7]


# --- the made-up federation --------------------------------------------------------------------------------------


class Talks(Selector):
    """Asks some clients, trains the others, and keeps the even ones."""

    def round(self, fed: View) -> Plan:
        yield Ask(fed.available[:2], (Loss(),))
        yield Train(fed.available[2:], (SquaredLoss(),), keep=lambda replies: replies.clients % 2 == 0)


def test_a_round_has_its_requests_and_replies_in_order() -> None:
    federation = FakeFederation(6, script={"loss": np.arange(6) / 2})
    played = federation.play(Talks())
    assert [type(request) for request in played.requests] == [Ask, Train]
    assert [replies.clients.tolist() for replies in played.replies] == [[0, 1], [2, 3, 4, 5]]
    assert played.replies[0]["loss"].tolist() == [0.0, 0.5]
    assert (len(played.asks), len(played.trains)) == (1, 1)
    assert played.trained.tolist() == [2, 3, 4, 5]
    assert [used.tolist() for used in played.used] == [[2, 4]]
    assert federation.history.trainings.tolist() == [0, 0, 1, 0, 1, 0]
    assert federation.history.last("loss")[:2].tolist() == [0.0, 0.5]
    assert np.isfinite(federation.history.last("squared_loss")[2:]).all()
    assert played.seconds >= 0


def test_who_drops_out_does_not_answer_and_is_remembered_as_failed() -> None:
    federation = FakeFederation(6)
    played = federation.play(Talks(), drop=[1, 4], nan={"squared_loss": [2]})
    assert [replies.clients.tolist() for replies in played.replies] == [[0], [2, 3, 5]]
    assert np.isnan(played.replies[1]["squared_loss"]).tolist() == [True, False, False]
    assert np.isfinite(played.replies[0]["loss"]).all()
    assert federation.history.failures.tolist() == [0, 1, 0, 0, 1, 0]
    assert [used.tolist() for used in played.used] == [[2]]


def test_rounds_follow_each_other_and_newcomers_are_seen() -> None:
    seen: list[tuple[int, int, int, list[int]]] = []

    class Looks(Selector):
        def round(self, fed: View) -> Plan:
            seen.append((fed.round, fed.rounds, fed.clients, fed.available.tolist()))
            yield Train(fed.available)

    federation = FakeFederation(2, rounds=7)
    federation.run(Looks(), 2)
    federation.grow([30])
    federation.play(Looks(), available=[2, 0])
    assert seen == [(0, 7, 2, [0, 1]), (1, 7, 2, [0, 1]), (2, 7, 3, [0, 2])]
    assert (federation.clients, federation.population.sizes[2]) == (3, 30)
    assert federation.history.trainings.tolist() == [3, 2, 1]


def test_answers_are_those_of_seed_and_round() -> None:
    class Asks(Selector):
        def round(self, fed: View) -> Plan:
            yield Ask(fed.available, (Loss(),))

    def course(seed: int) -> list[list[float]]:
        return [played.replies[0]["loss"].tolist() for played in FakeFederation(4, seed=seed).run(Asks(), 2)]

    assert course(0) == course(0)
    assert course(0) != course(1)
    assert course(0)[0] != course(0)[1]


def test_time_passes_with_the_slowest_client_of_a_training() -> None:
    federation = FakeFederation(4, seconds=[1.0, 5.0, 2.0, 9.0])

    class Trains(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(np.array([0, 1, 2]))

    federation.play(Trains(), drop=[1])
    assert federation.now == federation.view().now == 5.0
    np.testing.assert_array_equal(federation.history.durations, [1.0, np.nan, 2.0, np.nan])
    assert FakeFederation(4).view().now == 0.0
    timeless = FakeFederation(4)
    timeless.play(Trains())
    assert timeless.now == 0.0


def test_clients_foresee_their_presence_now_and_later() -> None:
    assert FakeFederation(3).view().forecast is None
    same = FakeFederation(3, presence=[0.1, 0.2, 0.3], seconds=[1, 1, 1])
    forecast = same.view().forecast
    assert forecast is not None
    assert forecast(0.0, 10.0, np.array([2, 0])).tolist() == [0.3, 0.1]
    two = FakeFederation(3, presence=[[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    forecast = two.view().forecast
    assert forecast is not None
    assert forecast(0.0, 10.0, np.array([1])).tolist() == [0.2]
    assert forecast(5.0, 10.0, np.array([1])).tolist() == [0.5]


@pytest.mark.parametrize("name", ["multiplicity", "weights", "lr_factors", "pull_factors"])
def test_two_courses_are_the_same_if_all_requests_are(name: str) -> None:
    def course(**rows: Any) -> Played:
        return Played([Ask([0], (Loss(),)), Train([0, 1], **rows)])

    assert course().same_as(course())
    assert course(**{name: [1, 2]}).same_as(course(**{name: [1, 2]}))
    assert not course(**{name: [1, 2]}).same_as(course(**{name: [1, 3]}))
    assert not course(**{name: [1, 2]}).same_as(course())
    assert not course().same_as(course(**{name: [1, 2]}))


def test_two_courses_differ_in_their_clients_their_kind_and_their_number() -> None:
    one = Played([Train([0, 1])])
    assert not one.same_as(Played([Train([0, 2])]))
    assert not one.same_as(Played([Ask([0, 1], ())]))
    assert not one.same_as(Played([Train([0, 1]), Train([0, 1])]))
    assert not Played([Train([0, 1]), Train([0, 1])]).same_as(one)
