"""Runs in virtual time repeated from their record, and what cannot be repeated."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from muster.core.errors import ConfigError, DataError, StoreError, TrainingError
from muster.engine.base import Failed
from muster.engine.wrapped import WrappedEngine
from muster.experiment import Store, replay, run
from muster.experiment.parts import local_engine
from muster.experiment.repetition import differences, find_run, repeat
from muster.server.loop import Observer

TIMED = {"devices": {"method": "lognormal", "samples_per_second": 50.0}, "rounds": 5}
BUFFERED = {"method": "buffered", "in_flight": 6, "k": 2, "max_staleness": 2}


def repeatable(tiny, **changes):
    chosen = {"selection": {"method": "random", "clients_per_round": 3}}
    return tiny(**TIMED | chosen | changes)


@pytest.mark.parametrize(
    "pacing",
    [
        {},
        {"method": "over-select", "factor": 1.4},
        {"method": "deadline", "quantile": 0.5},
        {"method": "deadline", "seconds": 1.0, "late": "use"},
        BUFFERED,
        {"method": "pisces", "in_flight": 6},
    ],
)
@pytest.mark.parametrize("selection", ["random", "oort", "tifl"])
def test_a_simulated_run_is_repeated_to_the_bit(tiny, tmp_path, pacing, selection):
    experiment = repeatable(tiny, pacing=pacing, selection={"method": selection, "clients_per_round": 3})
    result = run(experiment, workers=0, out=tmp_path)
    done = replay(str(tmp_path), workers=0)
    assert done.differences == []
    assert done.again.parameters.tobytes() == result.parameters.tobytes()


def test_sessions_of_virtual_time_are_repeated(tiny, tmp_path):
    sessions = {"method": "rhythm"}
    experiment = repeatable(tiny, pacing=BUFFERED, availability=sessions, rounds=6)
    run(experiment, workers=0, out=tmp_path)
    assert replay(str(tmp_path), workers=0).differences == []


class Crashing(WrappedEngine):
    """Client 1 fails whenever it trains; it counts as an answer until its answer is collected."""

    def train(self, order):
        for answer in (row for part in self.inner.train(order) for row in part):
            client = int(answer.clients[0])
            yield Failed(client, "crashed") if client == 1 else answer


def test_failures_in_virtual_time_are_repeated(tiny, tmp_path):
    pacing = {"method": "over-select", "factor": 1.5}
    everybody = {"method": "random", "clients_per_round": 6}
    experiment = repeatable(tiny, pacing=pacing, selection=everybody, engine={"kind": "inline"})
    made = run(experiment, out=tmp_path, make_engine=lambda parts: Crashing(local_engine(parts, 0)))
    assert any(1 in training.failed for record in made.records for training in record.trainings)
    assert replay(str(tmp_path), workers=0).differences == []


class Stop(Observer):
    def __init__(self, after: int) -> None:
        self.after = after

    def wants_stop(self) -> bool:
        self.after -= 1
        return self.after <= 0


def test_a_run_that_did_not_end_is_repeated_as_far_as_it_came(tiny, tmp_path):
    result = run(repeatable(tiny, pacing=BUFFERED), workers=0, out=tmp_path, observers=[Stop(3)])
    assert len(result.records) == 3
    done = replay(str(tmp_path), workers=0)
    assert done.differences == []
    assert len(done.again.records) == 3


def test_a_record_that_does_not_fit_is_refused_or_seen(tiny, tmp_path):
    run(repeatable(tiny, pacing=BUFFERED), workers=0, out=tmp_path)
    found, recorded = find_run(str(tmp_path))
    flown = recorded.records[2].trainings[0].flown
    flown.started[0] += 1.0
    with pytest.raises(TrainingError, match=r"round \d cannot be repeated: the run tells client \d+ to train"):
        repeat(found, recorded, 0)
    flown.started[0] -= 1.0
    recorded.records[1].trainings[0].weights[0] += 1e-16
    spoilt = replace(recorded, parameters=recorded.parameters + np.float32(1e-7))
    assert repeat(found, spoilt, 0).differences == ["round 2: the weights", "the parameters"]


def test_what_is_compared(tiny):
    one, other = (run(repeatable(tiny, pacing=BUFFERED, seed=seed), workers=0) for seed in (0, 1))
    assert list(differences(one, one)) == []
    told = list(differences(one, other))
    assert "round 1: whose updates were used" in told
    assert "round 1: the metrics" in told
    assert told[-1] == "the parameters"


# --- what cannot be repeated -----------------------------------------------------------------------------


def test_unknown_and_ambiguous_runs(tiny, tmp_path):
    with Store(tmp_path) as store:
        for seed in (0, 1):
            run(repeatable(tiny, name="twice", seed=seed, rounds=1), workers=0, store=store)
    with pytest.raises(ConfigError, match=r"no run in .* is called 'twicee'.*\nExpected: did you mean 'twice'"):
        replay("twicee", folder=tmp_path)
    with pytest.raises(ConfigError, match="'twice' may be 2 runs"):
        replay("twice", folder=tmp_path)
    with pytest.raises(StoreError, match="there is no store"):
        replay("twice", folder=tmp_path / "elsewhere")


def test_a_run_without_time_is_not_repeated(tiny, tmp_path):
    run(tiny(rounds=1), workers=0, out=tmp_path)
    with pytest.raises(StoreError, match=r"no arrivals in its record[^$]*`muster run`"):
        replay(str(tmp_path))


def test_another_version_is_refused_unless_it_is_wanted(tiny, tmp_path):
    run(repeatable(tiny, rounds=1), workers=0, out=tmp_path)
    with Store(tmp_path) as store:
        store.connection.execute("UPDATE experiments SET code_version = '0.0.1 (abc)'")
    with pytest.raises(StoreError, match=re.escape("made by Muster 0.0.1")):
        replay(str(tmp_path))
    assert replay(str(tmp_path), workers=0, any_version=True).differences == []


def test_data_that_is_not_here(tiny, tmp_path):
    experiment = repeatable(tiny, rounds=1)
    run(experiment, workers=0, out=tmp_path)
    found, recorded = find_run(str(tmp_path))
    own = replace(found, config={**found.config, "data": {"source": "own", "shape": [64], "classes": 10}})
    with pytest.raises(DataError, match="brought their own data"):
        repeat(own, recorded, 0)
    handed = replace(found, config={**found.config, "data": {"object": "Dataset", "samples": 7}})
    with pytest.raises(ConfigError, match=r"an object in Python \(data\)"):
        repeat(handed, recorded, 0)
