"""`muster compare`: methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli import choosing
from muster.cli.running import Workspace
from muster.console.output import err, out


def compare(  # noqa: PLR0917 (the options are what they are)
    runs: choosing.Runs = None,
    where: choosing.Where = None,
    workspace: Workspace = None,
    metric: choosing.Metric = "accuracy",
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Another metric to show alongside; may be repeated."),
    ] = None,
    last: choosing.Last = 1,
    at: Annotated[
        str,
        typer.Option(
            metavar="UNIT[=N]",
            help="Scores after this much work: round, client_trainings, bytes or virtual_seconds; "
            "without N as much as the cheapest run has spent.",
        ),
    ] = "",
    target: choosing.Targets = None,
    sustain: Annotated[
        int, typer.Option(help="A target counts when this many evaluations in a row reach it.", min=1)
    ] = 1,
    baseline: choosing.Baseline = "",
    by: choosing.By = None,
    problem: choosing.Problem = None,
    together: choosing.Together = False,
    spread: choosing.Spread = "interval",
    correction: Annotated[str, typer.Option(help="For several comparisons: holm or none.")] = "holm",
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this: scores, budgets, targets, significance, participation, weights, time, overhead or "
            "ranks."
        ),
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Best first.")] = False,
    unfinished: choosing.Unfinished = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write a .md, .tex, .csv or .json file instead of printing."
        ),
    ] = None,
) -> None:
    """Compare methods: means over seeds, equal budgets, work to a target, tests, participation and overhead.

    Runs on different data, partitions, models or local training are different problems: each is judged separately,
    and methods are ranked over all of them.

    Takes sweeps, names or fingerprints of runs, or folders with results; by default all runs of the workspace.

    Example: `muster compare digits --last 5 --target 0.9 --out digits.tex`
    """
    from muster.experiment.choice import chosen_results
    from muster.report.compare import TABLES, Options, for_terminal, format_of, write_comparison
    from muster.report.compare import compare as compare_results

    if file is not None:
        format_of(file)
    options = Options(
        metric=metric,
        also=tuple(also or ()),
        last=last,
        at=at,
        targets=tuple(target or ()),
        sustain=sustain,
        baseline=baseline,
        by=tuple(by or ()),
        problem=tuple(problem or ()),
        together=together,
        spread=spread,
        correction=correction,
        unfinished=unfinished,
        sort=sort,
        tables=tuple(table or TABLES),
    )
    options.check()
    results = chosen_results(runs or (), where or (), folder=workspace)
    comparison = compare_results(results, options)
    if file is None:
        out.print(for_terminal(comparison, out.width))
        return
    write_comparison(comparison, file)
    for remark in comparison.remarks:
        err.print(f"Note: {remark}", markup=False, soft_wrap=True)
    out.print(f"Written: {file}", markup=False, soft_wrap=True)
