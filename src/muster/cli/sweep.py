"""`muster sweep`: many runs, with one progress display for all of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.running import Settings, Workspace
from muster.console.output import err, out
from muster.console.times import readable_time

if TYPE_CHECKING:
    from muster.config.experiment import Experiment
    from muster.experiment.jobs import RunOutcome
    from muster.experiment.sweep import Sweep


def sweep(  # noqa: PLR0917 (the options are what they are)
    file: Annotated[Path, typer.Argument(help="The sweep, a TOML file.", metavar="SWEEP.toml")],
    settings: Settings = None,
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this case; may be repeated. Default: all.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="This seed instead of the file's; may be repeated.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Runs side by side. Default: one per core.", min=1)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", help="Worker processes of each run. Default: the cores that are left."),
    ] = None,
    workspace: Workspace = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be run, and about how long it would take.")
    ] = False,
) -> None:
    """Run all combinations of a sweep that are missing; resume those that were interrupted; skip complete ones.

    Example: `muster sweep examples/sweep-digits.toml --dry-run`
    """
    from muster.console.sweeps import sweep_progress
    from muster.experiment.jobs import run_experiments
    from muster.experiment.sweep import load_sweep
    from muster.results.store import Store
    from muster.results.store import workspace as workspace_folder

    plan = load_sweep(file).part(case or (), seed or ())
    experiments = [experiment.with_options(settings or []) for experiment in plan.experiments()]
    folder = workspace_folder(workspace)
    if dry_run:
        _show_plan(plan, experiments, folder, jobs, workers)
        return
    with Store(folder) as store, sweep_progress(err, plan.name, jobs, workers) as progress:
        outcome = run_experiments(
            experiments, store, jobs=jobs, workers=workers, sweep_name=plan.name, observer=progress
        )
    there = ["--workspace", str(workspace)] if workspace else []
    chosen = [
        word
        for option, values in (("--set", settings), ("--case", case), ("--seed", seed))
        for value in values or ()
        for word in (option, str(value))
    ]
    again = ["muster", "sweep", str(file), *chosen, *there]
    _conclude(plan.name, experiments, folder, outcome, there=there, again=again)


def _conclude(
    name: str,
    experiments: Sequence[Experiment],
    folder: Path,
    outcome: RunOutcome,
    *,
    there: Sequence[str],
    again: Sequence[str],
) -> None:
    from muster.core.errors import SweepError

    titles = {experiment.fingerprint: f"{experiment.title}, seed {experiment.seed}" for experiment in experiments}
    skipped = f" ({len(outcome.skipped)} before)" if outcome.skipped else ""
    out.print(
        f"{name}: {len(outcome.complete)} of {len(titles)} runs complete{skipped}, in {folder}", soft_wrap=True
    )
    told: set[str] = set()
    for fingerprint, why in outcome.failed.items():
        # What several runs failed of is said at length once.
        reason = why.splitlines()[0] if why in told else why
        told.add(why)
        err.print(f"failed: {titles[fingerprint]} ({fingerprint[:8]}): {reason}", markup=False, soft_wrap=True)
    if outcome.stopped:
        err.print(
            f"stopped; the same command continues from here: {shlex.join(again)}", markup=False, soft_wrap=True
        )
        raise typer.Exit(130)
    if outcome.failed:
        look = shlex.join(["muster", "runs", "--status", "failed", *there])
        raise SweepError(
            f"{len(outcome.failed)} of {len(titles)} runs failed",
            fix=f"see `{look}`; the same command tries them again, and nothing else",
        )
    compare = shlex.join(["muster", "compare", name, *there])
    out.print(f"Compare them with: {compare}", markup=False, soft_wrap=True)


def _show_plan(
    plan: Sweep, experiments: Sequence[Experiment], folder: Path, jobs: int | None, workers: int | None
) -> None:
    from rich.table import Table

    from muster.config.identity import pace_kind
    from muster.experiment.estimate import calibrate, known_paces, seconds_left
    from muster.experiment.jobs import share_of_cores
    from muster.results.store import DATABASE, Store

    runs = []
    if (folder / DATABASE).exists():
        with Store(folder) as store:
            runs = store.runs()
    done = {run.fingerprint: run.done for run in runs}
    left = {e.fingerprint: e.rounds - done.get(e.fingerprint, 0) for e in experiments}
    kinds = {experiment.fingerprint: pace_kind(experiment.described()) for experiment in experiments}
    missing = [experiment for experiment in experiments if left[experiment.fingerprint]]
    jobs, workers = share_of_cores(jobs, workers, len(missing) or 1)

    def told(experiment: Experiment) -> None:
        err.print(f"trying three rounds of {experiment.title} …", markup=False, style="dim")

    paces = calibrate(missing, known_paces(runs), workers, told)
    rows: dict[tuple[str, int, str], list[Experiment]] = {}
    for experiment in experiments:
        key = experiment.fingerprint
        what = "complete" if not left[key] else f"continue after round {done[key]}" if done.get(key) else "run"
        if left[key] and paces[kinds[key]].fails:
            what, left[key] = f"will fail: {paces[kinds[key]].fails}", 0
        rows.setdefault((experiment.title, experiment.rounds, what), []).append(experiment)
    table = Table(title=f"{plan.name}: {len(experiments)} runs", title_justify="left", box=None)
    for column in ("run", "seeds", "what"):
        table.add_column(column)
    for column in ("rounds", "takes about"):
        table.add_column(column, justify="right")
    for (title, rounds, what), same in rows.items():
        seconds = seconds_left({e.fingerprint: left[e.fingerprint] for e in same}, kinds, paces, jobs=1)
        seeds = ", ".join(str(experiment.seed) for experiment in same)
        table.add_row(title, seeds, what, str(rounds), readable_time(seconds) if seconds else "–")
    out.print(table)
    sources = ", ".join(sorted({pace.source for pace in paces.values()})) or "nothing to do"
    side = f"{jobs} side by side" + (f", {workers} workers each" if workers else "")
    total = readable_time(seconds_left(left, kinds, paces, jobs))
    out.print(f"{len(missing)} runs, {side}: about {total} in all ({sources})", markup=False, soft_wrap=True)
