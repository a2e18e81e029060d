"""Long runs: what a store keeps is not kept in memory as well, and nothing is missing for it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster.core.errors import MusterError
from muster.experiment.parts import build_parts
from muster.server import loop
from muster.server.ledger import Costs, Ledger
from muster.server.persistence import Persistence
from muster.server.record import RoundRecord

TOOLS = Path(__file__).parents[2] / "tools"


class Looking(loop.Observer):
    """Counts the rounds that the server remembers, and what it says that they cost."""

    def __init__(self) -> None:
        self.remembered: list[int] = []
        self.totals: list[int] = []
        self.server: Any = None

    def started(self, server: Any, rounds: int, done: int) -> None:
        self.server = server

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self.remembered.append(len(self.server.records))
        self.totals.append(ledger.total().client_trainings)


def timeless(result: Any) -> list[Costs]:
    return [Costs(**{**vars(costs), "seconds": 0.0, "server_seconds": 0.0}) for costs in result.ledger.rounds]


@pytest.mark.parametrize("every", [1, 5])
def test_what_the_store_keeps_is_forgotten_and_the_result_has_it_all(
    tiny: Any, tmp_path: Path, monkeypatch: Any, every: int
) -> None:
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 2)
    made, looking = tiny(rounds=11, checkpoint={"every": every}), Looking()
    kept = muster.run(made, workers=0, out=tmp_path, observers=[looking])
    whole = muster.run(made, workers=0)
    assert max(looking.remembered) <= 4 + every
    assert looking.totals == [5 * done for done in range(1, 12)]
    assert kept.records == whole.records
    assert timeless(kept) == timeless(whole)
    assert kept.ledger.disclosed == whole.ledger.disclosed
    assert kept.ledger.total_disclosed() == whole.ledger.total_disclosed()
    assert kept.metrics == whole.metrics
    assert np.array_equal(kept.parameters, whole.parameters)


def test_without_a_store_nothing_is_forgotten(tiny: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 2)
    assert [record.round for record in muster.run(tiny(rounds=8), workers=0).records] == list(range(1, 9))


class Forgetful(Persistence):
    """Keeps nothing, and so gives nothing back."""

    def load(self) -> None:
        return None

    def round_ended(self, *what: Any) -> None:
        pass


def test_rounds_that_cannot_be_given_back_are_not_forgotten(tiny: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 2)
    parts = build_parts(tiny(), workers=0)
    with parts.engine:
        result = loop.Server(parts.selector, parts.aggregator, parts.engine).run(8, Forgetful())
    assert [record.round for record in result.records] == list(range(1, 9))


@pytest.mark.parametrize("missing", ["load", "round_ended"])
def test_a_store_that_lacks_one_of_its_two_halves_cannot_be_made(missing: str) -> None:
    """It would lose rounds, or begin anew at every start, without a word."""
    halves = {name: getattr(Forgetful, name) for name in ("load", "round_ended") if name != missing}
    with pytest.raises(TypeError, match=missing):
        type("Half", (Persistence,), halves)()


def test_a_schedule_that_follows_losses_sees_all_of_them(tiny: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Also of the rounds that are in the store alone, and of those before a resume."""
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 1)
    made = tiny(rounds=9, training={"lr": 0.5, "schedule": "plateau", "patience": 1})
    whole = muster.run(made, workers=0)

    class Stop(loop.Observer):
        done = 0

        def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
            self.done = record.round

        def wants_stop(self) -> bool:
            return self.done == 4

    muster.run(made, workers=0, out=tmp_path, observers=[Stop()])
    rest = muster.run(made, workers=0, out=tmp_path, resume=True)
    assert np.array_equal(rest.parameters, whole.parameters)


def test_the_rounds_before_a_failure_are_told_in_full(tiny: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 1)

    class Fail(loop.Observer):
        def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
            if record.round == 7:
                raise MusterError("enough")

    with pytest.raises(MusterError) as caught:
        muster.run(tiny(rounds=9), workers=0, out=tmp_path, observers=[Fail()])
    assert caught.value.result is not None
    assert [record.round for record in caught.value.result.records] == list(range(1, 8))


class Counting(loop.Observer):
    """Counts the function calls of some rounds: what they do, however busy the machine is."""

    def __init__(self, *rounds: range) -> None:
        self.calls = dict.fromkeys(rounds, 0)

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        sys.setprofile(None)
        for rounds in self.calls:
            if record.round + 1 in rounds:
                sys.setprofile(partial(self._count, rounds))

    def _count(self, rounds: range, frame: Any, event: str, argument: Any) -> None:
        self.calls[rounds] += event in ("call", "c_call")


def test_a_late_round_calls_as_many_functions_as_an_early_one(tiny: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "ROUNDS_IN_MEMORY", 10)
    counting = Counting(range(30, 50), range(180, 200))
    muster.run(tiny(rounds=201), workers=0, out=tmp_path, observers=[counting])
    early, late = counting.calls.values()
    assert late == pytest.approx(early, rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_thousand_rounds_cost_no_more_memory_and_no_more_time_at_their_end(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """`make soak` does the same with 20,000."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    from soak import soak

    # Other work on the machine can slow down the last rounds of one run, but not those of three in a row.
    for attempt in range(3):
        figures = soak(2000, 400, tmp_path / str(attempt))
        assert figures.last_megabytes - figures.first_megabytes < 6
        assert figures.last_bytes == pytest.approx(figures.first_bytes, rel=0.2)
        if figures.slower < 0.1:
            return
    pytest.fail(f"the last rounds take {figures.slower:.0%} more time than the first")
