"""Repeats a run from its record: clients arrive, are absent, late or refused as they were.

No seed can reproduce a federation's order of arrivals. The store keeps it; with it the
run can be computed again on this machine, and compared with what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster._version import __version__
from muster.config.experiment import Experiment, from_dict
from muster.core.errors import ConfigError, DataError, MusterError, StoreError, nearest
from muster.data.own import OWN
from muster.experiment.parts import build_parts
from muster.results.store import DATABASE, Run, Store, workspace
from muster.results.store.environment import environment
from muster.server.loop import Observer, Server
from muster.server.record import RoundRecord, TrainingRecord
from muster.server.recorded_time import AsRecorded, RecordedClock
from muster.server.result import Result

#: Libraries whose version may change the last bits.
_ARITHMETIC = ("torch", "numpy")


@dataclass(frozen=True)
class Replay:
    """A run and its repetition."""

    recorded: Result
    again: Result
    #: Where they are not the same, in words; empty: every bit is.
    differences: list[str]
    #: What may explain differences.
    suspicions: list[str]


def replay(
    word: str,
    *,
    folder: Path | str | None = None,
    workers: int | None = None,
    any_version: bool = False,
    observers: Sequence[Observer] = (),
) -> Replay:
    """Repeat a run of a store on this machine's engine, with the arrivals that its record names.

    `word`: the run's name, the beginning of its fingerprint, or a folder with a store that holds one run;
    `folder`: the workspace. A run of a federation is computed client by client, as its nodes did; then it is the
    same to the bit. `any_version` allows a run that another version of Muster made.
    """
    run, recorded = find_run(word, folder)
    _check_version(run, any_version)
    _check_arrivals(run, recorded)
    return repeat(run, recorded, workers, observers)


def repeat(run: Run, recorded: Result, workers: int | None, observers: Sequence[Observer] = ()) -> Replay:
    """Compute the rounds of a run again."""
    experiment, done = _experiment(run, recorded), len(recorded.records)
    parts = build_parts(experiment, workers)
    clock = RecordedClock(recorded.records, parts.devices, parts.availability, experiment.seed)
    parts = replace(parts, filters=(*parts.filters, AsRecorded(clock)))
    server = parts.server((*observers, _StopAfter(done)), clock=clock)
    with parts.engine:
        again = _run(server, experiment.rounds, done)
    again = replace(again, name=run.name, config=recorded.config)
    return Replay(recorded, again, list(differences(recorded, again)), _suspicions(run, recorded))


def find_run(word: str, folder: Path | str | None = None) -> tuple[Run, Result]:
    """The run that a word names, and what it has left."""
    place = Path(word) if (Path(word) / DATABASE).exists() else workspace(folder)
    with Store(place, create=False) as store:
        everything = store.runs()
        if place == Path(word):
            found = everything
        else:
            found = [run for run in everything if run.name == word or run.fingerprint.startswith(word)]
        if not found:
            known = [name for run in everything for name in (run.name, run.fingerprint[:8])]
            raise ConfigError(
                f"no run in {store.path} is called '{word}', or has a fingerprint that begins so",
                expected=nearest(word, set(known)) if known else "a run; there is none",
                fix="see `muster runs`; --workspace names the folder of another store",
            )
        if len(found) > 1:
            raise ConfigError(
                f"'{word}' may be {len(found)} runs",
                expected="one of " + ", ".join(f"{run.fingerprint[:8]} ({run.name})" for run in found[:10]),
            )
        (run,) = found
        if not run.done:
            raise ConfigError(f"the run {run.fingerprint[:8]} has no rounds that could be repeated")
        return run, store.result(run)


def differences(recorded: Result, again: Result) -> Iterator[str]:
    """Where two results differ in any bit: selections, weights, arrivals, metrics, parameters."""
    compares_metrics = recorded.config.get("flower", {}).get("evaluate", "server") == "server"
    for old, new in zip(recorded.records, again.records, strict=False):
        for what, get in _COMPARED.items():
            if [get(t) for t in old.trainings] != [get(t) for t in new.trainings]:
                yield f"round {old.round}: {what}"
        if (old.began, old.ended) != (new.began, new.ended):
            yield f"round {old.round}: the time ({old.ended:.6g} s, now {new.ended:.6g} s)"
        if compares_metrics and not _same_metrics(old, new):
            yield f"round {old.round}: the metrics"
    if len(recorded.records) != len(again.records):
        yield f"the number of rounds ({len(recorded.records)}, now {len(again.records)})"
    if recorded.parameters.tobytes() != again.parameters.tobytes():
        yield "the parameters"


#: What is compared in every training.
_COMPARED: dict[str, Callable[[TrainingRecord], Any]] = {
    "whose updates were used": lambda training: training.clients,
    "the weights": lambda training: training.weights,
    "whose updates were left out": lambda training: training.left_out,
    "who failed": lambda training: sorted(training.failed),
    "whose updates were refused": lambda training: sorted(training.rejected),
    "the arrivals": lambda training: training.flown,
}


def _same_metrics(old: RoundRecord, new: RoundRecord) -> bool:
    # As text: what was not measured is not a number, and equals nothing.
    return {name: repr(value) for name, value in old.metrics.items()} == {
        name: repr(value) for name, value in new.metrics.items()
    }


class _StopAfter(Observer):
    """A run that did not finish is repeated as far as it got."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def wants_stop(self) -> bool:
        self._left -= 1
        return self._left <= 0


def _run(server: Server, rounds: int, done: int) -> Result:
    try:
        return server.run(rounds)
    except MusterError:
        # A run that failed fails again, after the same rounds.
        if server.done < done:
            raise
        return server.result()


def _experiment(run: Run, recorded: Result) -> Experiment:
    """What was run, on the engine whose arithmetic it had."""
    for section, value in run.config.items():
        if _has_objects(value):
            raise ConfigError(
                f"the run was described with an object in Python ({section}), which a store does not keep",
                fix="repeat it from the program that made it",
            )
    if run.config.get("data", {}).get("source") == OWN:
        raise DataError(
            "the clients of this run brought their own data: none of it is here",
            fix="only runs on a data set that this machine has, too, can be repeated",
        )
    experiment = from_dict(run.config)
    if not _is_real(recorded):
        return experiment
    # Nodes train one client at a time; "inline" and "processes" do the same, the vectorised engine does not.
    return replace(experiment, engine={**experiment.engine, "kind": "processes"})


def _has_objects(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "object" in value or "array" in value or any(map(_has_objects, value.values()))
    return isinstance(value, list) and any(map(_has_objects, value))


def _is_real(recorded: Result) -> bool:
    return any(record.observed is not None for record in recorded.records)


def _check_version(run: Run, any_version: bool) -> None:
    made_by = run.code_version.partition(" ")[0]
    if made_by != __version__ and not any_version:
        raise StoreError(
            f"the run {run.fingerprint[:8]} was made by Muster {made_by}, and this is {__version__}",
            fix=f"install that version (muster-fl=={made_by}), or try it with --any-version",
        )


def _check_arrivals(run: Run, recorded: Result) -> None:
    if not any(training.flown.clients for record in recorded.records for training in record.trainings):
        raise StoreError(
            f"the run {run.fingerprint[:8]} has no arrivals in its record: no time passed in it",
            expected="a run on a Flower federation, or one with a section [devices]",
            fix="what does not depend on time is repeated by `muster run`",
        )


def _suspicions(run: Run, recorded: Result) -> list[str]:
    here = environment()
    found = [
        f"{name} was {run.environment[name]}, and is {here[name]}"
        for name in _ARITHMETIC
        if name in run.environment and run.environment[name] != here[name]
    ]
    lost = sum("had lost its state" in event for record in recorded.records for event in record.events)
    if lost:
        found.append(f"clients had lost what they keep between trainings, {lost} times: that is not repeated")
    if not _is_real(recorded):
        found.append("a federation with flower.clock = 'virtual' has the bits of engine.kind = 'inline'")
    return found
