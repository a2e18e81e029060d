"""`muster league`: every method on many problems."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.running import Workspace
from muster.console.output import err, out

if TYPE_CHECKING:
    from muster.league.outcome import Outcome
    from muster.league.planning import LeaguePlan


def league(  # noqa: PLR0917 (the options are what they are)
    file: Annotated[
        Path | None, typer.Argument(help="Your own league. Default: Muster's.", metavar="[LEAGUE.toml]")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke (minutes), small (hours) or full.")] = "small",
    guest: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="MODULE:CLASS", help="Your own selector as well; may be repeated."),
    ] = None,
    problem: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this problem; may be repeated.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this table (Selection, Aggregation); may be repeated."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds for each problem. Default: the scale's.", min=1),
    ] = None,
    workspace: Workspace = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Runs side by side. Default: one per core.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", help="Worker processes of each run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be run.")] = False,
    page: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page: .html, or .md with pictures beside it.")
    ] = Path("league.html"),
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Results for `muster inspect` to advise from. Default: beside the page, with its name.",
        ),
    ] = None,
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Run nothing: write the page from what the workspace has.")
    ] = False,
) -> None:
    """Run every method on many problems at equal budgets, and write one page with ranks, tests and costs.

    Runs are kept in the workspace: the same command continues where it was stopped, and runs nothing twice.

    Example: `muster league --scale smoke --with my_methods:MySelector`
    """
    from muster.console.sweeps import sweep_progress
    from muster.league.evidence import evidence_of, write_evidence
    from muster.league.file import load_league
    from muster.league.outcome import failures, run_league, sweep_name
    from muster.league.page import write_page
    from muster.league.planning import plan
    from muster.results.store import Store
    from muster.results.store import workspace as workspace_folder

    chosen = {"problems": problem or (), "tables": table or ()}
    planned = plan(load_league(file), scale, guests=guest or (), **chosen, seeds=seeds)
    if dry_run:
        _show(planned)
        return
    with Store(workspace_folder(workspace)) as store:
        if only_page:
            outcome = run_league(planned, store, only_known=True)
        else:
            with sweep_progress(err, sweep_name(planned), jobs, workers) as progress:
                outcome = run_league(planned, store, jobs=jobs, workers=workers, observer=progress)
        if not outcome.complete:
            err.print("stopped; the same command continues from here")
            raise typer.Exit(130)
    words = ["muster", "league", *([str(file)] if file else []), "--scale", scale]
    words += [word for name in guest or () for word in ("--with", name)]
    words += [word for name in problem or () for word in ("--problem", name)]
    words += [word for name in table or () for word in ("--table", name)]
    words += ["--seeds", str(seeds)] if seeds is not None else []
    found = evidence_of(outcome)
    pages = write_page(outcome, found, page, shlex.join(words))
    _conclude(outcome, [*pages, write_evidence(found, evidence or page.with_suffix(".json"))])
    if (error := failures(outcome)) is not None:
        raise error


def _show(planned: LeaguePlan) -> None:
    from muster.league.planning import seeds_in_words

    seeds = seeds_in_words(planned.seeds.values())
    out.print(f"{planned.league.name}, scale {planned.scale_name}: {seeds} of each problem", markup=False)
    for table in planned.league.tables:
        for problem in planned.problems:
            rows = planned.rows(table, problem)
            own = f"{len(rows)} methods, {seeds_in_words([planned.seeds[problem.name]])}"
            out.print(f"  {table.name}, {problem.name}: {own}", markup=False)
    for name, why in planned.absent.items():
        out.print(f"  left out: {name}: {why}", markup=False, style="yellow")
    tuning = planned.tuning_runs()
    total = len({run.experiment.fingerprint for run in planned.runs({})})
    out.print(f"{total} runs" + (f", after {len(tuning)} to choose options" if tuning else ""), markup=False)


def _conclude(outcome: Outcome, written: list[Path]) -> None:
    from muster.league.tables import ranks
    from muster.report.render import to_rich

    for table in outcome.tables:
        if (own := ranks(table)) is not None:
            out.print(to_rich(own, out.width))
    out.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)
