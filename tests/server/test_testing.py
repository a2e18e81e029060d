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
from muster.server.testing import FakeFederation, check_selector
from muster.signals.losses import Loss

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
