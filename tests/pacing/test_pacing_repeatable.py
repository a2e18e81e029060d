"""The same bits with any number of workers, and after a run was stopped with clients in mid-flight."""

from __future__ import annotations

import os
import signal
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.results.checkpoint import load
from muster.server import Observer

PACINGS: dict[str, dict[str, Any]] = {
    "synchronous": {"method": "synchronous"},
    "over-select": {"method": "over-select", "factor": 1.5},
    "deadline": {"method": "deadline", "seconds": 40.0},
    "late-used": {"method": "deadline", "quantile": 0.5, "late": "use", "max_staleness": 2},
    "buffered": {"method": "buffered", "in_flight": 8, "k": 1},
    "pisces": {"method": "pisces", "in_flight": 8, "bound": 4.0},
}
SELECTIONS: dict[str, dict[str, Any]] = {
    "random": {"method": "random", "clients_per_round": 4},
    "oort": {"method": "oort", "clients_per_round": 4},
    "fedcs": {"method": "fedcs", "candidates": 0.7, "deadline": 600.0, "clients_per_round": 4},
    "power-of-choice": {"method": "power-of-choice", "clients_per_round": 4},
    "high-loss": {"method": "high-loss", "clients_per_round": 4},
}
#: Kind → numbers of workers; one by one in this process is the same arithmetic as one by one in others.
ENGINES = {
    "one by one": (("inline", 0), ("processes", 1), ("processes", 2), ("processes", 3)),
    "vectorised": (("vectorised", 0), ("vectorised", 1), ("vectorised", 2), ("vectorised", 3)),
}


def timed(tiny, pacing, selection, **changes):
    """Twelve phones that come and go; trainings take about a minute.

    With this seed enough of them are there: every case has answers in its later rounds, so that it can be killed
    while they come in, and clients at work on several versions where it is buffered.
    """
    return tiny(
        pacing=PACINGS[pacing],
        selection=SELECTIONS[selection],
        devices={"method": "phones", "flops_per_sample": 5e9, "connection": "varying", "jitter": 0.2},
        availability={"method": "rhythm"},
        **{"rounds": 6, "seed": 1, **changes},
    )


def everything(result: muster.Result) -> list[Any]:
    """All of a run but the time that it took on this machine."""
    costs = [asdict(row) | {"seconds": 0, "server_seconds": 0} for row in result.ledger.rounds]
    return [result.parameters.tobytes(), [str(record.state_dict()) for record in result.records], costs]


def check_workers(tiny, pacing: str, selection: str, arithmetic: str) -> None:
    (kind, workers), *others = ENGINES[arithmetic]
    first = everything(muster.run(timed(tiny, pacing, selection, engine={"kind": kind}), workers=workers))
    for kind, workers in others:
        again = muster.run(timed(tiny, pacing, selection, engine={"kind": kind}), workers=workers)
        assert everything(again) == first, (kind, workers)


@pytest.mark.parametrize(("pacing", "selection"), [("buffered", "oort"), ("late-used", "power-of-choice")])
@pytest.mark.parametrize("arithmetic", ENGINES)
def test_workers_do_not_matter(tiny, pacing, selection, arithmetic):
    check_workers(tiny, pacing, selection, arithmetic)


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", ENGINES)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("pacing", PACINGS)
def test_workers_never_matter(tiny, pacing, selection, arithmetic):
    check_workers(tiny, pacing, selection, arithmetic)


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def wants_stop(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize(
    "selection", [pytest.param(name, marks=[] if name == "oort" else pytest.mark.slow) for name in SELECTIONS]
)
@pytest.mark.parametrize("pacing", PACINGS)
def test_stopped_in_mid_flight_and_resumed(tiny, tmp_path, pacing, selection):
    experiment = timed(tiny, pacing, selection, rounds=9)
    whole = muster.run(experiment, workers=0)
    versions = []
    for _ in range(3):  # three times in the same run
        muster.run(experiment, workers=0, out=tmp_path, resume=True, observers=[StopAfter(2)])
        if pacing == "buffered":
            (file,) = tmp_path.glob("checkpoints/*/*.muster")
            airspace = load(file, experiment.fingerprint)["time"]["airspace"]
            assert len(airspace["flights"]["clients"]) > 0
            versions.append(len(airspace["models"]))
    if pacing == "buffered":
        assert max(versions) >= 2  # clients at work on several versions
    resumed = muster.run(experiment, workers=0, out=tmp_path, resume=True)
    assert everything(resumed) == everything(whole)


class Killed(Observer):
    """`kill -9` for this process and all that it has started, while a round's answers come in."""

    def __init__(self, after: int) -> None:
        self.after = after

    def answered(self, answers: object) -> None:
        if self.after <= 0:
            os.killpg(0, signal.SIGKILL)

    def round_ended(self, record: object, ledger: object) -> None:
        self.after -= 1


def run_and_be_killed(experiment: muster.Experiment, out: Path, *, workers: int, after: int) -> int:
    """The signal that ended a process which began or resumed this run."""
    child = os.fork()
    if not child:
        try:
            os.setsid()
            muster.run(experiment, workers=workers, out=out, resume=True, observers=[Killed(after)])
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # it was not killed
    return os.WTERMSIG(os.waitpid(child, 0)[1])


#: Numbers of workers of the process that is not killed, and of those that are.
KILLED = {"inline": (0, 0, 0), "processes": (1, 2, 3), "vectorised": (0, 2, 1)}


def check_kills(tiny, out: Path, pacing: str, selection: str, kind: str) -> None:
    """Killed in two different rounds, and resumed with other numbers of workers each time."""
    experiment, (last, *killed) = timed(tiny, pacing, selection, rounds=6, engine={"kind": kind}), KILLED[kind]
    for workers, after in zip(killed, (2, 1), strict=True):
        assert run_and_be_killed(experiment, out, workers=workers, after=after) == signal.SIGKILL
    resumed = muster.run(experiment, workers=last, out=out, resume=True)
    assert everything(resumed) == everything(muster.run(experiment, workers=last))


@pytest.mark.parametrize("kind", KILLED)
def test_killed_while_answers_come_in(tiny, tmp_path, kind):
    check_kills(tiny, tmp_path, "buffered", "oort", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("pacing", PACINGS)
def test_killed_at_any_time(tiny, tmp_path, pacing, selection, kind):
    check_kills(tiny, tmp_path, pacing, selection, kind)


def check_buffered_is_synchronous(tiny, **changes: Any) -> None:
    """Where all clients need the same time, and as many are waited for as start."""
    equal = {"method": "lognormal", "compute_spread": 0.0, "network_spread": 0.0, "samples_per_second": 50.0}
    shared: dict[str, Any] = {
        "devices": equal,
        "partition": {"scheme": "iid", "clients": 12},
        "selection": SELECTIONS["random"],
        "rounds": 4,
        **changes,
    }
    synchronous = muster.run(tiny(**shared), workers=0)
    buffered = muster.run(tiny(**shared, pacing={"method": "buffered", "in_flight": 4, "k": 4}), workers=0)
    assert everything(buffered)[0] == everything(synchronous)[0]
    assert buffered.selections == synchronous.selections
    assert [record.ended for record in buffered.records] == [record.ended for record in synchronous.records]
    assert [str(row) for row in buffered.metrics] == [str(row) for row in synchronous.metrics]


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
@pytest.mark.parametrize("aggregation", ["fedavg", "simprox", "fedadam"])
def test_buffered_is_synchronous_where_devices_are_equal(tiny, kind, aggregation):
    check_buffered_is_synchronous(tiny, engine={"kind": kind}, aggregation={"method": aggregation})


@pytest.mark.parametrize("selection", SELECTIONS)
def test_buffered_is_synchronous_whoever_selects(tiny, selection):
    check_buffered_is_synchronous(tiny, selection=SELECTIONS[selection], rounds=8)
