"""From a description to a result: runs the server on the parts, and keeps what it gives."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from muster.config.experiment import Experiment, checkpoint_options
from muster.core.errors import CheckpointError, ConfigError, MusterError, OutputError
from muster.experiment.extension import Beginning, find_beginning, go_on_from
from muster.experiment.parts import EngineFactory, Parts, build_parts
from muster.results.store import DATABASE, Recorder, Run, Store
from muster.results.store.claims import WHOLE
from muster.results.store.environment import code_version, environment
from muster.results.store.stops import StopOnRequest
from muster.server.loop import Observer
from muster.server.origin import Origin
from muster.server.result import Result
from muster.tracking import Tracking, tracking

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
    if store is None and out is None:
        return _run(experiment, observers, _Ready.of(experiment, workers, make_engine))
    # Clients of a real federation are not what they were: whoever wants more rounds of it begins anew.
    extend = (extend or resume) and make_engine is None
    ready = None
    with ExitStack() as stack:
        if out is not None:
            stack.enter_context(_withdrawn_if_refused(Path(out)))
            checked_folder(Path(out))
        of_its_own = store is None
        if not isinstance(store, Store):
            folder = Path(store or str(out))
            stack.enter_context(_withdrawn_if_refused(folder))
            checked_folder(folder)
            if not (folder / DATABASE).exists():  # a store is not begun for what cannot be run
                ready = _Ready.checked(experiment, workers, make_engine)
            store = stack.enter_context(Store(folder))
            if of_its_own:
                stack.enter_context(_to_itself(store))
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
                ready = ready or _Ready.of(experiment, workers, make_engine)
                result = _run(experiment, observers, ready, recorder, beginning)
            if of_its_own and result.complete:  # the folder belongs to one run: what was extended is part of it
                _delete(store, [other for other in others if other.rounds < experiment.rounds])
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


@contextmanager
def _withdrawn_if_refused(folder: Path) -> Iterator[None]:
    """Folders that are made for a run go away again if it is refused before anything is written into them."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except MusterError:
        for place in made:
            with suppress(OSError):  # it is not empty
                place.rmdir()
        raise


@contextmanager
def _to_itself(store: Store) -> Iterator[None]:
    """Keeps an output folder for one process: of two runs that begin at once, neither has done a round yet by
    which the other could know it."""
    if not store.claims.take(WHOLE):
        raise OutputError(
            f"another process is running an experiment into {store.folder}",
            fix="wait for it, stop it, or choose another output folder",
        )
    try:
        yield
    finally:
        store.claims.release(WHOLE)


@dataclass(frozen=True)
class _Ready:
    """All that a run needs."""

    parts: Parts
    trackers: Tracking

    @classmethod
    def of(cls, experiment: Experiment, workers: int | None, make_engine: EngineFactory | None) -> _Ready:
        trackers = tracking(experiment)
        return cls(build_parts(experiment, workers, make_engine), trackers)

    @classmethod
    def checked(cls, experiment: Experiment, workers: int | None, make_engine: EngineFactory | None) -> _Ready:
        """With all that is otherwise found when the run begins, as far as it can be known before."""
        checkpoint_options(experiment)
        ready = cls.of(experiment, workers, make_engine)
        if make_engine is None:  # the clients of a real federation are known when it is there
            ready.parts.server().check(experiment.rounds)
        return ready


def _run(
    experiment: Experiment,
    observers: Sequence[Observer],
    ready: _Ready,
    recorder: Recorder | None = None,
    beginning: Beginning | None = None,
) -> Result:
    parts, trackers = ready.parts, ready.trackers
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


def _delete(store: Store, runs: Sequence[Run]) -> None:
    for run in runs:
        store.delete(run)


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
