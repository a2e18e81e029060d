"""`muster reproduce`: the papers' tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli import completion
from muster.cli.running import Workspace
from muster.console.output import err, out

if TYPE_CHECKING:
    from muster.papers.outcome import Reproduced
    from muster.papers.planning import Plan
    from muster.papers.report import ReproductionPage
    from muster.results.store import Store


def reproduce(  # noqa: PLR0917 (the options are what they are)
    id: Annotated[
        str | None,
        typer.Argument(
            help="A table or figure, such as terraform/table2. With a paper, or nothing: a list.",
            metavar="[ID]",
            autocompletion=completion.entries_of_papers,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All tables and figures.")] = False,
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (a night on a laptop) or paper.")] = "small",
    cells: Annotated[
        str | None,
        typer.Option(help='Only these columns or federations: "1*,4". Default: what the scale says, mostly all.'),
    ] = None,
    rows: Annotated[str | None, typer.Option(help='Only these rows: "FedAvg / *".')] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds, starting from 0.", min=1)] = None,
    workspace: Workspace = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Runs side by side. Default: one per core.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", help="Worker processes of each run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be run, and how it differs.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.md", help="Also write the comparison as Markdown.")
    ] = None,
) -> None:
    """Run a paper's table or figure and show our numbers beside the published ones.

    Runs are kept in the workspace: what is complete is not run again, so a large table can be made in pieces.
    Example: `muster reproduce terraform/table2 --cells "1*,4"`
    """
    from muster.papers.entries import entries, entry
    from muster.papers.planning import plan
    from muster.papers.published import PAPERS
    from muster.results.store import Store
    from muster.results.store import workspace as workspace_folder

    named = PAPERS if id is None else [name for name in PAPERS if name == id.rstrip("/")]
    if named and not everything:
        _list(named)
        return
    if everything and (id or cells or rows):
        raise typer.BadParameter("--all means every cell of every table: leave ID, --cells and --rows out")
    wanted = list(entries().values()) if id is None else [entry(id)]
    plans = [plan(one, scale, cells=cells, rows=rows, seeds=seeds) for one in wanted]
    with Store(workspace_folder(workspace)) as store:
        if dry_run:
            _show_plans(plans, store)
            return
        outcomes, complete = _run(plans, store, jobs, workers)
    _conclude(outcomes, complete, file)


def _conclude(outcomes: Sequence[Reproduced], complete: bool, file: Path | None) -> None:
    from muster.core.errors import SweepError
    from muster.papers.report import page, write_pages

    pages = [page(outcome) for outcome in outcomes]
    for one in pages:
        _show(one)
    if file is not None:
        write_pages(pages, file)
        err.print(f"Written: {file}", markup=False, soft_wrap=True)
    if not complete:
        err.print("stopped; the same command continues from here")
        raise typer.Exit(130)
    if lacking := sum(len(outcome.missing) for outcome in outcomes):
        raise SweepError(
            f"{lacking} runs have no result",
            fix="see `muster runs --status failed`; the same command tries them again, and nothing else",
        )


def _list(papers: Iterable[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from muster.papers.entries import entries
    from muster.papers.published import paper

    for name in papers:
        of = paper(name)
        table = Table(title=f"{of.name}: {of.title}", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        table.add_column("id", no_wrap=True)
        table.add_column("what it shows")
        table.add_column("cells × rows", no_wrap=True)
        for entry in entries().values():
            if entry.paper == name:
                size = f"{len(entry.cells)} × {len(entry.rows)}"
                table.add_row(entry.id, entry.published.caption, size)
        out.print(table)
    out.print("Run one with `muster reproduce ID --scale smoke|small|paper`.", style="dim", soft_wrap=True)


def _show_plans(plans: Sequence[Plan], store: Store) -> None:
    from muster.papers.report import heading
    from muster.papers.reproduce import missing

    for plan in plans:
        out.print(f"{plan.entry.id}: {plan.entry.published.caption}", style="bold", soft_wrap=True, markup=False)
        for line in heading(plan):
            out.print(f"  {line}", soft_wrap=True, markup=False)
        size = " × ".join(
            f"{count} {what}{'s' if count != 1 else ''}"
            for count, what in ((len(plan.cells), "cell"), (len(plan.rows), "row"), (plan.seeds, "seed"))
        )
        line = f"  {len(plan.runs)} runs ({size}), {missing(plan, store)} of them not done yet"
        out.print(line if plan.runs else "  nothing is trained", soft_wrap=True, markup=False)


def _run(
    plans: Sequence[Plan], store: Store, jobs: int | None, workers: int | None
) -> tuple[list[Reproduced], bool]:
    from muster.console.sweeps import sweep_progress
    from muster.papers.reproduce import reproduce as run_plans

    name = f"{plans[0].entry.id if len(plans) == 1 else 'all tables and figures'}, {plans[0].scale}"
    with sweep_progress(err, name, jobs, workers) as progress:
        return run_plans(plans, store, jobs=jobs, workers=workers, observer=progress)


def _show(page: ReproductionPage) -> None:
    from muster.report.render import to_rich

    out.print(page.title, style="bold", soft_wrap=True, markup=False)
    for line in page.heading:
        style = "yellow" if line.startswith("differs") else None
        out.print(f"  {line}", style=style, soft_wrap=True, markup=False)
    out.print()
    for table in page.as_tables():
        out.print(to_rich(table, out.width))
    for line in page.remarks:
        out.print(line, soft_wrap=True, markup=False, style="dim")
    out.print()
