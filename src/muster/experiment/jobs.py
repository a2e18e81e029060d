"""Many experiments side by side, each in its own process, with the store as the common memory.

Completed runs are not run again, interrupted ones are resumed, and what another process is running is left to it:
a claim in the store decides, so any number of sweeps may work in one workspace. A run that fails, or whose process
dies, does not stop the others.

Experiments travel by value: a class that was written in a cell of a notebook is in no module that another process
could import.
"""

from __future__ import annotations

import functools
import io
import logging
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeAlias

import cloudpickle
import torch

from muster.config.experiment import Experiment
from muster.config.own_components import own_components
from muster.core.errors import ConfigError, MusterError
from muster.core.own_code import is_own
from muster.engine.device import available_cores
from muster.experiment.runner import run
from muster.results.store import Run, Store
from muster.server.ledger import Ledger
from muster.server.loop import Observer, Server
from muster.server.record import RoundRecord

#: How often to check whether a run that another process had is free or complete.
_POLL_SECONDS = 0.5
#: How long a process may take to end after it was told to stop immediately.
_KILL_SECONDS = 5.0
_PACKAGE = Path(__file__).parents[1]
#: File, line and function of each step on the way to an error.
_Steps: TypeAlias = list[tuple[str, int, str]]


class JobObserver:
    """Is told how a batch of runs goes. Every method is optional."""

    def planned(self, experiments: Sequence[Experiment], runs: Sequence[Run]) -> None:
        """What is to be done; `runs` says how far each is already."""

    def run_began(self, experiment: Experiment) -> None:
        """A process has been started for a run."""

    def rounds_done(self, experiment: Experiment, done: int) -> None:
        """A run has this many rounds now."""

    def run_ended(self, experiment: Experiment, error: str) -> None:
        """A run ended; `error` is empty when it is complete."""

    def wants_stop(self) -> bool:
        """Asked repeatedly: True lets the runs finish their rounds and ends the batch."""
        return False


@dataclass
class RunOutcome:
    """How a batch of runs ended, by fingerprint."""

    #: Complete now, those that were complete before included.
    complete: list[str] = field(default_factory=list)
    #: Complete before this batch began.
    skipped: list[str] = field(default_factory=list)
    #: Why a run failed: a line, and for errors in a user's own code where it happened.
    failed: dict[str, str] = field(default_factory=dict)
    #: The batch was asked to stop before everything was done.
    stopped: bool = False


@dataclass
class _Job:
    experiment: Experiment
    process: BaseProcess
    connection: Connection
    error: str = ""


def share_of_cores(jobs: int | None, workers: int | None, runs: int) -> tuple[int, int]:
    """(jobs, workers of each): as many runs side by side as there are cores, unless told otherwise."""
    cores = available_cores()
    if jobs is None:
        jobs = max(1, min(runs, cores if not workers else cores // workers))
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}", expected="at least 1")
    if workers is None:
        each = cores // jobs
        workers = each if each > 1 else 0  # a single worker would only be a detour
    return jobs, workers


def workers_of(experiment: Experiment, workers: int) -> int:
    """Workers of one run: one in place of none, where a client that hangs is to be noticed.

    Nobody can interrupt a client in the run's own process. A worker costs a little time and changes no bit.
    """
    options = experiment.engine
    watched = options.get("task_deadline") is not None and options.get("kind") != "inline"
    return max(workers, 1) if watched else workers


def run_experiments(
    experiments: Sequence[Experiment],
    store: Store | Path | str,
    *,
    jobs: int | None = None,
    workers: int | None = None,
    sweep_name: str | None = None,
    observer: JobObserver | None = None,
) -> RunOutcome:
    """Run what is missing of `experiments` in a store; with a `sweep_name` they can be found by it later.

    `jobs` runs side by side (None: one per core) with `workers` processes each (None: the cores that are left).
    The same experiment twice is run once.
    """
    store = store if isinstance(store, Store) else Store(store)
    distinct = {experiment.fingerprint: experiment for experiment in (one.settled() for one in experiments)}
    for experiment in distinct.values():
        experiment.check()
    runs = {run.fingerprint: run for run in store.plan(distinct.values(), sweep_name)}
    observer = observer or JobObserver()
    observer.planned(list(distinct.values()), [runs[key] for key in distinct])
    outcome = RunOutcome(skipped=[key for key in distinct if runs[key].status == "complete"])
    missing = [experiment for key, experiment in distinct.items() if runs[key].status != "complete"]
    jobs, workers = share_of_cores(jobs, workers, len(missing) or 1)
    batch = _Batch(store, missing, workers, observer, outcome)
    batch.work(jobs)
    done = {run.fingerprint for run in store.runs(status="complete")}
    outcome.complete = [key for key in distinct if key in done]
    return outcome


class _Batch:
    """The runs that are still to be done, and the processes that are working on them."""

    def __init__(
        self, store: Store, missing: list[Experiment], workers: int, observer: JobObserver, outcome: RunOutcome
    ) -> None:
        self._store, self._missing, self._workers = store, missing, workers
        self._observer, self._outcome = observer, outcome
        self._jobs: list[_Job] = []
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(["muster.experiment.preload"])

    def work(self, jobs: int) -> None:
        try:
            while self._jobs or (self._missing and not self._outcome.stopped):
                while len(self._jobs) < jobs and not self._outcome.stopped and self._start_next():
                    pass
                self._listen()
                if self._observer.wants_stop() and not self._outcome.stopped:
                    self._outcome.stopped = True
                    self._tell_all_to_stop()
        finally:
            self._kill_all()

    def _start_next(self) -> bool:
        """Start the first unclaimed run; False when there is none."""
        for position, experiment in enumerate(self._missing):
            found = self._store.run(experiment.fingerprint)
            if found.status == "complete":  # another process has done it meanwhile
                del self._missing[position]
                self._observer.rounds_done(experiment, found.done)
                self._observer.run_ended(experiment, "")
                return True
            if not self._store.claims.taken(found.id):
                del self._missing[position]
                self._start(experiment)
                return True
            self._observer.rounds_done(experiment, found.done)
        return False

    def _start(self, experiment: Experiment) -> None:
        try:
            packed = _packed(experiment)
        except Exception as error:  # whatever a user's own object does when it is asked
            self._fail(experiment, f"it cannot be sent to a process of its own: {type(error).__name__}: {error}")
            return
        ours, theirs = self._context.Pipe()
        workers = workers_of(experiment, self._workers)
        arguments = (packed, self._store.folder.resolve(), workers, theirs)
        process = self._context.Process(target=_job, args=arguments)
        with _without_script():
            process.start()
        theirs.close()
        self._jobs.append(_Job(experiment, process, ours))
        self._observer.run_began(experiment)

    def _listen(self) -> None:
        """Listen to the processes, for at most a moment."""
        if not self._jobs:
            time.sleep(_POLL_SECONDS)
            return
        talking = {job.connection: job for job in self._jobs}
        for connection in wait(list(talking), _POLL_SECONDS):
            job = talking[connection]  # type: ignore[index]
            try:
                kind, content = job.connection.recv()
            except (EOFError, OSError):
                self._bury(job)
                continue
            if kind == "round":
                self._observer.rounds_done(job.experiment, content)
            else:
                job.error = _with_steps(*content)

    def _bury(self, job: _Job) -> None:
        job.process.join()
        job.connection.close()
        self._jobs.remove(job)
        try:
            found = self._store.run(job.experiment.fingerprint)
        except ConfigError:  # an invalid description leaves no run behind, unless a sweep lists it
            self._fail(job.experiment, job.error)
            return
        if found.status == "running":  # another process was quicker to claim it
            self._missing.append(job.experiment)
            return
        if found.status in ("planned", "interrupted") and not job.error:
            job.error = f"its process died (exit code {job.process.exitcode})"
        if found.status == "stopped" and self._outcome.stopped:
            return
        if found.status != "complete":
            self._fail(job.experiment, job.error or found.error or f"it was {found.status}")
        else:
            self._observer.run_ended(job.experiment, "")

    def _fail(self, experiment: Experiment, why: str) -> None:
        self._outcome.failed[experiment.fingerprint] = why
        self._observer.run_ended(experiment, why)

    def _tell_all_to_stop(self) -> None:
        for job in self._jobs:
            try:
                job.connection.send("stop")
            except OSError:
                continue  # it has just ended

    def _kill_all(self) -> None:
        """Only after an error or a second Ctrl-C: what is committed stays, the rounds under way are lost."""
        for job in self._jobs:
            job.process.kill()
        for job in self._jobs:
            job.process.join(_KILL_SECONDS)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also packs cached functions by value: by name they cannot be found where the script is not imported."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, functools._lru_cache_wrapper) and is_own(obj.__wrapped__):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _packed(experiment: Experiment) -> bytes:
    """An experiment with the user's own components that it names."""
    file = io.BytesIO()
    _Pickler(file).dump((experiment, own_components(experiment.described())))
    return file.getvalue()


@contextmanager
def _without_script() -> Iterator[None]:
    """Processes started inside do not import the script that this one runs: that would run it again.

    What they need of it comes by value.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _with_steps(error: str, steps: _Steps) -> str:
    """An error with the lines that led to it, from the first that is not Muster's; cells are known only here."""
    own = next((place for place, (file, _, _) in enumerate(steps) if not Path(file).is_relative_to(_PACKAGE)), 0)
    lines = traceback.format_list([traceback.FrameSummary(*step) for step in steps[own:]])
    return "\n".join([error, *(line.rstrip() for line in lines)])


# --- in the process of a run -----------------------------------------------------------------------------


class _Messenger(Observer):
    """Tells the batch how the run goes, and the run when to stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._stop = connection, False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            self._connection.recv()
            self._stop = True
        except (EOFError, OSError):
            # Our parent is dead: end too, so that the next one can take over immediately.
            os.kill(os.getpid(), signal.SIGKILL)

    def started(self, server: Server, rounds: int, done: int) -> None:
        self._connection.send(("round", done))

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self._connection.send(("round", record.round))

    def wants_stop(self) -> bool:
        return self._stop


def _job(packed: bytes, folder: Path, workers: int, connection: Connection) -> None:
    # Ctrl-C goes to the whole group; only the process that started us decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # Refused updates and failed clients are in the store; here they would only disturb the display.
    logging.getLogger("muster").setLevel(logging.ERROR)
    try:
        experiment, components = cloudpickle.loads(packed)
        for own in components:
            own.register()
        run(experiment, workers, store=folder, resume=True, observers=[_Messenger(connection)])
    except MusterError as error:
        connection.send(("error", (str(error), [])))
    except Exception as error:
        connection.send(("error", (f"{type(error).__name__}: {error}", _steps(error.__traceback__))))
        sys.exit(1)


def _steps(trace: TracebackType | None) -> _Steps:
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]
