"""A run that is complete can be extended: the same bits as all rounds in one go, or the reason why not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import muster
from muster.core.errors import CheckpointError, OutputError
from muster.experiment import extension
from muster.experiment.extension import dependences_on_length, find_beginning
from muster.experiment.parts import build_parts
from muster.results.store import Store
from muster.selection import Plan, Selector, Train, View
from muster.selection.combinators import LimitGap
from muster.selection.random import RandomSelection
from muster.server.beginning import as_beginning, as_not_last
from muster.server.loop import MANY_CLIENTS, Observer
from muster.server.persistence import Saved
from muster.server.record import GroupAccuracy, RoundRecord
from muster.server.result import Result
from muster.training.schedules import Schedule


class Count(Observer):
    """How many rounds were really computed."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.rounds, self.stop_after = 0, stop_after

    def round_ended(self, record, ledger):
        self.rounds += 1

    def wants_stop(self) -> bool:
        return self.stop_after is not None and self.rounds + 1 >= self.stop_after


def same(one: Result, other: Result) -> None:
    assert np.array_equal(one.parameters, other.parameters)
    assert str(one.metrics) == str(other.metrics)  # NaN is not equal to itself
    assert [r.state_dict() | {"metrics": 0} for r in one.records] == [
        r.state_dict() | {"metrics": 0} for r in other.records
    ]
    for a, b in zip(one.records, other.records, strict=True):
        assert (a.client_accuracy is None) == (b.client_accuracy is None)
        if a.client_accuracy is not None:
            np.testing.assert_array_equal(a.client_accuracy, b.client_accuracy)
    timeless = [[replace(costs, seconds=0, server_seconds=0) for costs in r.ledger.rounds] for r in (one, other)]
    assert timeless[0] == timeless[1]
    assert one.ledger.disclosed == other.ledger.disclosed
    assert one.history.trainings.tolist() == other.history.trainings.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": {"momentum": 0.9, "schedule": "step", "decay_every": 2}},
        {"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}},
        {"aggregation": {"method": "fedadam"}, "selection": {"method": "oort", "clients_per_round": 4}},
        # The evaluation after the last of three rounds is not due in a run of five; the schedule follows losses.
        {
            "evaluation": {"every": 2},
            "training": {"schedule": "plateau", "patience": 0, "decay": 0.5, "lr": 2.0},
        },
        # What is said before round 1 depends on the number of rounds.
        {
            "selection": {
                "method": "warmup",
                "rounds": 4,
                "first": {"method": "random", "clients_per_round": 3},
                "then": {"method": "high-loss", "clients_per_round": 3},
            }
        },
        {"training": {"schedule": "cosine", "period": 4}},
        {
            "devices": {"model": "lognormal"},
            "pacing": {"method": "buffered", "k": 2, "in_flight": 8},
            "aggregation": {"method": "fedbuff"},
        },
        {"training": {"mode": "centralised"}},
    ],
    ids=["plain", "momentum", "scaffold", "oort", "plateau", "warmup", "period", "buffered", "centralised"],
)
def test_an_extended_run_is_the_same_to_the_bit(tiny, tmp_path, changes: dict[str, Any]):
    whole = muster.run(tiny(rounds=5, **changes), workers=0)
    muster.run(tiny(rounds=3, **changes), workers=0, store=tmp_path)
    count = Count()
    longer = muster.run(tiny(rounds=5, **changes), workers=0, store=tmp_path, resume=True, observers=[count])
    assert count.rounds == 2
    same(whole, longer)
    with Store(tmp_path) as store:
        kept = store.run(tiny(rounds=5, **changes).fingerprint)
        same(whole, store.result(kept))
        assert (kept.status, kept.done) == ("complete", 5)
        assert [event.kind for event in store.events(kept) if event.kind != "noted"][:2] == ["started", "extended"]
        # The shorter run is still there, as it was.
        shorter = store.result(tiny(rounds=3, **changes).fingerprint)
        same(shorter, muster.run(tiny(rounds=3, **changes), workers=0))


def test_extended_again_with_workers_and_from_a_run_that_was_stopped(tiny, tmp_path):
    whole = muster.run(tiny(rounds=6), workers=0)
    muster.run(tiny(rounds=4), workers=0, store=tmp_path, observers=[Count(stop_after=2)])
    for rounds, computed in ((5, 3), (6, 1)):
        count = Count()
        longer = muster.run(tiny(rounds=rounds), workers=2, store=tmp_path, extend=True, observers=[count])
        assert count.rounds == computed
    same(whole, longer)
    # Also backwards: what a longer run has done before it was stopped is the beginning of a shorter one.
    muster.run(tiny(rounds=9, seed=1), workers=0, store=tmp_path, observers=[Count(stop_after=2)])
    count = Count()
    shorter = muster.run(tiny(rounds=3, seed=1), workers=0, store=tmp_path, extend=True, observers=[count])
    assert count.rounds == 1
    same(shorter, muster.run(tiny(rounds=3, seed=1), workers=0))


def test_without_being_asked_a_run_begins_at_round_1(tiny, tmp_path):
    muster.run(tiny(rounds=2), workers=0, store=tmp_path)
    count = Count()
    muster.run(tiny(rounds=3), workers=0, store=tmp_path, observers=[count])
    assert count.rounds == 3


def test_what_is_extended_must_be_resumed_when_it_was_stopped(tiny, tmp_path):
    whole = muster.run(tiny(rounds=5), workers=0)
    muster.run(tiny(rounds=2), workers=0, store=tmp_path)
    muster.run(tiny(rounds=5), workers=0, store=tmp_path, extend=True, observers=[Count(stop_after=1)])
    with pytest.raises(OutputError, match=r"already holds a part of this run: .* 3 of 5 rounds"):
        muster.run(tiny(rounds=5), workers=0, store=tmp_path, extend=True)
    same(whole, muster.run(tiny(rounds=5), workers=0, store=tmp_path, resume=True))


def test_a_folder_of_its_own_keeps_the_longer_run_alone(tiny, tmp_path):
    muster.run(tiny(rounds=2), workers=0, out=tmp_path)
    with pytest.raises(OutputError, match="another experiment"):
        muster.run(tiny(rounds=4), workers=0, out=tmp_path)
    longer = muster.run(tiny(rounds=4), workers=0, out=tmp_path, resume=True)
    same(longer, muster.run(tiny(rounds=4), workers=0))
    with Store(tmp_path) as store:
        assert [(run.rounds, run.status) for run in store.runs()] == [(4, "complete")]
    # And a seed that differs is still another experiment.
    with pytest.raises(CheckpointError, match="another experiment"):
        muster.run(tiny(rounds=6, seed=5), workers=0, out=tmp_path, resume=True)


# --- what cannot be extended -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"training": {"schedule": "cosine"}}, "training.schedule = 'cosine' ends with the last round"),
        ({"training": {"schedule": "linear"}}, "'linear' ends with the last round"),
        ({"training": {"schedule": "one-cycle"}}, "'one-cycle' ends with the last round"),
        ({"selection": {"method": "hics", "clients_per_round": 3}}, "hics"),
        ({"selection": {"method": "hics", "fraction": 0.25}}, "hics"),
        ({"selection": {"method": "probe-fairness", "clients_per_round": 3}}, "a quarter of the rounds"),
        (
            {
                "selection": {
                    "method": "limit-gap",
                    "rounds": 6,
                    "selector": {"method": "tifl", "clients_per_round": 3},
                }
            },
            "share of the rounds as its credits",
        ),
    ],
)
def test_what_depends_on_the_number_of_rounds_says_so(tiny, changes, why):
    (said,) = dependences_on_length(tiny(**changes))
    assert why in said


def test_a_run_that_cannot_be_extended_begins_at_round_1(tiny, tmp_path, caplog):
    cosine = {"training": {"schedule": "cosine"}}
    muster.run(tiny(rounds=2, **cosine), workers=0, store=tmp_path)
    count = Count()
    longer = muster.run(tiny(rounds=3, **cosine), workers=0, store=tmp_path, resume=True, observers=[count])
    assert count.rounds == 3
    assert "cannot be extended, because training.schedule = 'cosine' ends with the last round" in caplog.text
    same(longer, muster.run(tiny(rounds=3, **cosine), workers=0))
    muster.run(tiny(rounds=2, **cosine), workers=0, out=tmp_path / "own")
    with pytest.raises(CheckpointError, match="ends with the last round"):
        muster.run(tiny(rounds=3, **cosine), workers=0, out=tmp_path / "own", resume=True)


def test_a_run_that_kept_its_model_alone_is_not_extended(tiny, tmp_path):
    lean = tiny(rounds=2, checkpoint={"final": "model"})
    muster.run(lean, workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        found = find_beginning(tiny(rounds=3), store)
        assert found is not None
        assert "its last checkpoint has no selector" in found.hindrance
    count = Count()
    muster.run(tiny(rounds=3), workers=0, store=tmp_path, resume=True, observers=[count])
    assert count.rounds == 3


def test_a_run_of_another_version_is_not_extended(tiny, tmp_path, monkeypatch):
    muster.run(tiny(rounds=2), workers=0, store=tmp_path)
    monkeypatch.setattr(extension, "code_version", lambda: "99.0")
    with Store(tmp_path) as store:
        found = find_beginning(tiny(rounds=3), store)
        assert found is not None
        assert "another version of Muster made it" in found.hindrance


@pytest.mark.parametrize(
    "name", ["step", "multistep", "exponential", "constant", "warm-restarts", "cosine", "one-cycle", "linear"]
)
def test_schedules_say_truly_whether_they_depend_on_the_number_of_rounds(name):
    schedule = Schedule(schedule=name, milestones=(2, 5))
    rates = [[schedule.learning_rate(at, rounds) for at in range(6)] for rounds in (6, 20)]
    assert (rates[0] != rates[1]) == bool(schedule.depends_on_length())


def test_the_last_round_as_it_would_be_if_others_followed():
    groups = [GroupAccuracy(0, 1, 0.5, 4)]
    record = RoundRecord(
        6, metrics={"accuracy": 0.5}, groups=groups, client_accuracy=np.zeros(3, dtype=np.float32)
    )
    assert as_not_last(record, evaluate_every=3) == record
    not_due = as_not_last(record, evaluate_every=4)
    assert str(not_due.metrics) == "{'accuracy': nan, 'loss': nan}"
    assert (not_due.groups, not_due.client_accuracy) == ([], None)
    many = replace(record, client_accuracy=np.zeros(MANY_CLIENTS + 1, dtype=np.float32))
    assert as_not_last(many, evaluate_every=3).client_accuracy is None
    assert as_not_last(many, evaluate_every=3).metrics == record.metrics


class Silent(Selector):
    """Fewer clients near the end, and does not say so."""

    def round(self, fed: View) -> Plan:
        yield Train(fed.available[: 1 + fed.rounds - fed.round])


class Speaking(Silent):
    def depends_on_length(self) -> str:
        return ""


class Cautious(RandomSelection):
    """What it inherits says nothing about what it adds."""

    def round(self, fed: View) -> Plan:
        yield Train(fed.available[: 1 + fed.rounds - fed.round])


def test_a_method_of_ones_own_has_to_say_that_it_does_not_depend_on_the_length(tiny, tmp_path, caplog):
    for selection in (Silent(), Cautious(3), LimitGap(selector=Silent(), rounds=4)):
        (why,) = dependences_on_length(tiny(selection=selection))
        assert "does not say whether it depends on the number of rounds" in why
    assert dependences_on_length(tiny(selection=Speaking())) == []
    muster.run(tiny(rounds=2, selection=Silent()), workers=0, store=tmp_path)
    longer = muster.run(tiny(rounds=3, selection=Silent()), workers=0, store=tmp_path, resume=True)
    assert "Silent does not say" in caplog.text
    same(longer, muster.run(tiny(rounds=3, selection=Silent()), workers=0))


def test_a_run_whose_checkpoint_is_damaged_is_not_extended(tiny, tmp_path, caplog):
    muster.run(tiny(rounds=2), workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        (store.checkpoint_folder(tiny(rounds=2).fingerprint) / "2.muster").write_bytes(b"no checkpoint")
    count = Count()
    muster.run(tiny(rounds=3), workers=0, store=tmp_path, resume=True, observers=[count])
    assert count.rounds == 3
    assert "cannot be extended, because" in caplog.text


def test_stopping_what_was_extended_leaves_the_shorter_run(tiny, tmp_path):
    muster.run(tiny(rounds=2), workers=0, out=tmp_path)
    muster.run(tiny(rounds=5), workers=0, out=tmp_path, resume=True, observers=[Count(stop_after=1)])
    with Store(tmp_path) as store:
        assert [(run.rounds, run.status) for run in store.runs()] == [(2, "complete"), (5, "stopped")]
    muster.run(tiny(rounds=5), workers=0, out=tmp_path, resume=True)
    with Store(tmp_path) as store:
        assert [(run.rounds, run.status) for run in store.runs()] == [(5, "complete")]


CALLS: list[int] = []


def counting_loss(outputs, targets):
    CALLS.append(1)
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_run_is_the_same_run_until_its_end_whatever_its_code_changes(tiny, tmp_path):
    CALLS.clear()
    described = tiny(rounds=2, objective=counting_loss)
    before = described.fingerprint
    result = muster.run(described, workers=0, store=tmp_path)
    assert CALLS
    assert described.fingerprint != before
    assert result.provenance.fingerprint == before
    with Store(tmp_path) as store:
        assert [(run.fingerprint, run.status) for run in store.runs()] == [(before, "complete")]
        assert store.runs()[0].config == result.config
    CALLS.clear()
    assert muster.run(described, workers=0).provenance.fingerprint == before


def test_rounds_that_do_not_fit_are_refused_in_words(tiny):
    parts = build_parts(tiny(rounds=2), workers=0)
    with parts.engine:
        server = parts.server()
        server.run(2)
        first = replace(server.records[0], events=[])
        server.cautions = lambda rounds: ["something"]
        with pytest.raises(CheckpointError, match="before round 1 it said something else"):
            as_beginning(Saved({}, records=[first]), 2, server, 3)


# --- command line ----------------------------------------------------------------------------------------


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.cli.main", "run", "c.toml", "-w", "0", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_command_extends_and_survives_a_kill(tmp_path):
    (tmp_path / "c.toml").write_text("rounds = 3\n")
    assert command("--rounds", "500", "--workspace", "whole", folder=tmp_path).returncode == 0
    assert command(folder=tmp_path).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "run", "c.toml", "-w", "0", "--rounds", "500"], cwd=tmp_path
    )
    with Store(tmp_path / "runs") as store:
        end = time.monotonic() + 60
        while not any(run.rounds == 500 and run.done > 20 for run in store.runs()):
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (run,) = [run for run in store.runs() if run.rounds == 500]
        assert run.status == "interrupted"
        assert 20 < run.done < 500
        rest = command("--rounds", "500", "--resume", folder=tmp_path)
        assert rest.returncode == 0, rest.stderr
        with Store(tmp_path / "whole") as other:
            same(store.result(run.fingerprint), other.results()[0])
