"""From a description to a result: runs the server on the parts, and keeps what it gives."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from muster.config.experiment import Experiment
from muster.core.errors import CheckpointError, ConfigError, MusterError, OutputError
from muster.experiment.extension import Beginning, find_beginning, go_on_from
from muster.experiment.parts import EngineFactory, build_parts
from muster.results.store import Recorder, Store
from muster.results.store.environment import code_version, environment
from muster.results.store.stops import StopOnRequest
from muster.server.loop import Observer
from muster.server.origin import Origin
from muster.server.result import Result
from muster.tracking import tracking

log = logging.getLogger("muster")

#: Where versions before the results store kept a run.
EARLIER_CHECKPOINT = "checkpoint.muster"


def run(
    experiment: Experiment,
    workers: int | None = None,
    *,
    out: Path | str | None = None,
    store: Store | Path | str | None = None,
    resume: bool = False,
    extend: bool = False,
    observers: Sequence[Observer] = (),
    make_engine: EngineFactory | None = None,
) -> Result:
    """Run an experiment.

    With a `store` (or the folder of one) every round is kept there, with a checkpoint; `resume` continues where an
    earlier run stopped. `extend` continues after the rounds of a complete or stopped run of the same experiment
    with another number of rounds, if there is one: the result is the same to the bit. `resume` does so, too.

    With `out`, plain result files are written there; without a `store`, it is the store's folder too.
    """
    check_is_experiment(experiment)
    experiment.check()
    experiment = experiment.settled()
    if out is not None:
        checked_folder(Path(out))
    if store is None and out is None:
        return _run(experiment, workers, observers, make_engine)
    # Clients of a real federation are not what they were: whoever wants more rounds of it begins anew.
    extend = (extend or resume) and make_engine is None
    with ExitStack() as stack:
        of_its_own = store is None
        if not isinstance(store, Store):
            store = stack.enter_context(Store(checked_folder(Path(store or str(out)))))
        begun = any(run.done for run in store.runs(fingerprint=experiment.fingerprint))
        beginning = find_beginning(experiment, store) if extend and not begun else None
        if of_its_own and not begun:
            _refuse_other_runs(store, experiment, resume, beginning)
        # Before the run: what its own code changes must not hide them.
        others = store.other_lengths(experiment) if of_its_own else []
        recorder = stack.enter_context(store.recorder(experiment, resume))
        observers = (*observers, StopOnRequest(store.folder, experiment.fingerprint))
        result = recorder.complete_result()
        try:
            if result is None:
                result = _run(experiment, workers, observers, make_engine, recorder=recorder, beginning=beginning)
            if of_its_own and result.complete:  # the folder belongs to one run: what was extended is part of it
                for other in others:
                    if other.rounds < experiment.rounds:
                        store.delete(other)
        except MusterError as error:
            # The cause may be in the rounds before.
            if out is not None and error.result is not None and not isinstance(error, OutputError):
                error.result.save(out)
            raise
    result = _named(result, experiment)
    if out is not None:
        result.save(out)
    return result


def check_is_experiment(value: object) -> None:
    """Refuse anything that is not an experiment, such as a dict of its settings."""
    if not isinstance(value, Experiment):
        raise ConfigError(
            f"the experiment is a {type(value).__name__}",
            expected="a muster.Experiment",
            fix="read a file with muster.load(path), and settings in a dict with muster.experiment.from_dict",
        )


def _run(
    experiment: Experiment,
    workers: int | None,
    observers: Sequence[Observer],
    make_engine: EngineFactory | None,
    *,
    recorder: Recorder | None = None,
    beginning: Beginning | None = None,
) -> Result:
    trackers = tracking(experiment)
    parts = build_parts(experiment, workers, make_engine)
    server = parts.server((*observers, trackers))
    if recorder is not None and beginning is not None:
        log.log(logging.WARNING if beginning.hindrance else logging.INFO, "%s", beginning)
        if not beginning.hindrance:
            go_on_from(beginning, server, recorder, experiment.rounds)
    try:
        with parts.engine, trackers:
            result = _named(server.run(experiment.rounds, recorder), experiment)
            return dataclasses.replace(result, module=parts.module)
    except MusterError as error:
        if server.done:
            # Where the store is the trouble, it may not even have the rounds before.
            with suppress(MusterError):
                error.result = _named(server.result(), experiment)
        raise


def _refuse_other_runs(store: Store, experiment: Experiment, resume: bool, beginning: Beginning | None) -> None:
    """An output folder belongs to one experiment: plain files of a second one would replace the first one's."""
    if (store.folder / EARLIER_CHECKPOINT).exists() and not store.runs(fingerprint=experiment.fingerprint):
        raise CheckpointError(
            f"{store.folder / EARLIER_CHECKPOINT} was written by an earlier version of Muster",
            fix="finish that run with the version that started it, or choose another output folder",
        )
    allowed = {experiment.fingerprint}
    if beginning is not None:
        if beginning.hindrance:
            raise CheckpointError(
                f"{store.folder} holds a run with another number of rounds: {beginning}",
                fix="choose another output folder, and the run begins at round 1 there",
            )
        allowed.add(beginning.run.fingerprint)
    if any(run.done and run.fingerprint not in allowed for run in store.runs()):
        problem = f"{store.folder} holds a run of another experiment (another config, seed or number of rounds)"
        if resume:
            raise CheckpointError(problem, fix="resume with the config that started it, or use another --out")
        raise OutputError(problem, fix="choose another output folder, or keep many runs with --workspace")


def _named(result: Result, experiment: Experiment) -> Result:
    """With what the experiment knows about it; a result that was stored earlier keeps where it comes from."""
    provenance = result.provenance
    if not provenance.fingerprint:
        status = "complete" if result.complete else "stopped"
        provenance = Origin(experiment.fingerprint, status, code_version=code_version(), environment=environment())
    return dataclasses.replace(result, name=experiment.title, config=experiment.described(), provenance=provenance)


def checked_folder(folder: Path) -> Path:
    """The folder, made if need be, or an OutputError if nothing can be written into it."""
    probe = folder / f".muster-write-test-{os.getpid()}"  # runs side by side look at the same folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror or error}", fix="choose another folder with --out"
        ) from error
    return folder
