"""`muster.run` and `muster.sweep`: what people call from Python, with progress where it can be seen."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from torch import nn

from muster.config.experiment import Experiment
from muster.console.notebook import NotebookConsole, bars, in_notebook
from muster.console.progress import progress_for
from muster.console.sweeps import SweepProgress
from muster.core.errors import ConfigError, SweepError
from muster.experiment.jobs import RunOutcome, run_experiments
from muster.experiment.parts import EngineFactory
from muster.experiment.runner import check_is_experiment
from muster.experiment.runner import run as run_quietly
from muster.experiment.sweep import Sweep, load_sweep
from muster.results.store import Store
from muster.server.loop import Observer
from muster.server.result import Result

T = TypeVar("T")


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
    progress: bool | None = None,
) -> Result:
    """Run an experiment.

    With a `store` (or the folder of one) every round is kept there, with a checkpoint; `resume` continues where an
    earlier run stopped. `extend` continues after the rounds of a complete or stopped run of the same experiment
    with another number of rounds, if there is one: the result is the same to the bit. `resume` does so, too.

    With `out`, plain result files are written there; without a `store`, it is the store's folder too.
    `progress`: True shows it, False does not; None does in a notebook and in a terminal.
    """
    check_is_experiment(experiment)
    with ExitStack() as stack:
        if (console := _console(progress)) is not None:
            shown = stack.enter_context(progress_for(console, experiment.title, json_lines=False))
            observers = (*observers, shown)
        return run_quietly(
            experiment,
            workers,
            out=out,
            store=store,
            resume=resume,
            extend=extend,
            observers=observers,
            make_engine=make_engine,
        )


def sweep(
    plan: Sweep | Sequence[Experiment] | Path | str,
    store: Store | Path | str | None = None,
    *,
    jobs: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> list[Result]:
    """Run a sweep, or any experiments, side by side, each in a process of its own; the results in their order.

    `plan` is a `muster.Sweep`, the path of a sweep's file, or experiments. With a `store` (or the folder of one)
    what is complete there is not run again; without, nothing is kept on disk. `jobs` runs at once (None: one a
    core) with `workers` processes each (None: the cores that are left). Classes and functions of a notebook go
    along. Where runs fail, the others are done first; the SweepError then says why, and has their `results`.
    """
    if isinstance(plan, Path | str):
        plan = load_sweep(plan)
    given: object = plan
    if not isinstance(given, Sweep | Iterable) or isinstance(given, Mapping):
        raise ConfigError(
            f"the plan of a sweep is a {type(given).__name__}",
            expected="a muster.Sweep, the path of a sweep's file, or a list of experiments",
            fix="put a single experiment into a list, or run it with muster.run",
        )
    experiments: list[Experiment] = plan.experiments() if isinstance(plan, Sweep) else list(plan)
    for one in experiments:
        check_is_experiment(one)
        one.check()
    experiments = [one.settled() for one in experiments]
    name = plan.name if isinstance(plan, Sweep) else None
    with ExitStack() as stack:
        if store is None:
            store = stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-sweep-"))
        if not isinstance(store, Store):
            store = stack.enter_context(Store(store))
        watching = None
        if (console := _console(progress)) is not None:
            display = SweepProgress(console, name or f"{len(experiments)} experiments", jobs, workers)
            watching = stack.enter_context(display.displayed())
        outcome = run_experiments(
            experiments, store, jobs=jobs, workers=workers, sweep_name=name, observer=watching
        )
        complete = set(outcome.complete)
        results = [_result(store, one) for one in experiments if one.fingerprint in complete]
    if outcome.failed:
        raise _failure(experiments, outcome, results)
    return results


def tracked(things: Sequence[T], title: str, progress: bool | None = None) -> Iterable[T]:
    """The items, with a progress bar that counts those already taken."""
    console = _console(progress)
    if console is None or not (console.is_terminal or isinstance(console, NotebookConsole)):
        return things
    return _counted(things, title, console)


def _counted(things: Sequence[T], title: str, console: Console) -> Iterator[T]:
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
    )
    with bars(console, *columns) as bar:
        task = bar.add_task(title, total=len(things))
        for thing in things:
            yield thing
            bar.update(task, advance=1)


def _console(progress: bool | None) -> Console | None:
    """Where progress goes; None: nowhere. A console of its own for each, so that displays may overlap."""
    if progress is False:
        return None
    if in_notebook():
        return NotebookConsole()
    console = Console(stderr=True, highlight=False)
    return console if progress or console.is_terminal else None


def _result(store: Store, experiment: Experiment) -> Result:
    """A run from the store, under this experiment's name, with its network if that is available."""
    found = dataclasses.replace(store.result(store.run(experiment.fingerprint)), name=experiment.title)
    module = experiment.model if isinstance(experiment.model, nn.Module) else None
    return dataclasses.replace(found, module=module)


def _failure(experiments: Sequence[Experiment], outcome: RunOutcome, results: list[Result]) -> SweepError:
    titles = {one.fingerprint: f"{one.title}, seed {one.seed}" for one in experiments}
    reasons: dict[str, list[str]] = {}
    for fingerprint, why in outcome.failed.items():
        reasons.setdefault(why, []).append(titles[fingerprint])
    told = "\n".join(f"{'; '.join(runs)}: {why}" for why, runs in reasons.items())
    error = SweepError(
        f"{len(outcome.failed)} of {len(titles)} runs failed\n{told}",
        fix="muster.run(experiment) runs one of them here, where a debugger reaches it; the same call tries again "
        "what failed, and with a store nothing else",
    )
    error.results = results
    return error
