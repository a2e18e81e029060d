"""`muster compare`: methods side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.console import err, out
from muster.cli.running import Workspace


def compare(  # noqa: PLR0917 (the options are what they are)
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sweeps, names or fingerprints of runs in the workspace, or folders with results. Default: all.",
            metavar="RUN|SWEEP|FOLDER",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="SECTION.KEY=VALUE", help="Only runs with this setting; may be repeated."),
    ] = None,
    workspace: Workspace = None,
    metric: Annotated[str, typer.Option(help="The metric to compare.")] = "accuracy",
    last: Annotated[int, typer.Option(help="Mean of the last K evaluations.", metavar="K", min=1)] = 1,
    at: Annotated[
        str,
        typer.Option(
            metavar="UNIT[=N]",
            help="Scores after so much work: round, client_trainings, bytes or virtual_seconds; "
            "without N as much as the cheapest run has spent.",
        ),
    ] = "",
    target: Annotated[
        list[float] | None,
        typer.Option(help="Value of the metric to be reached. Default: the baseline's mean at the end."),
    ] = None,
    sustain: Annotated[
        int, typer.Option(help="A target counts when so many evaluations in a row reach it.", min=1)
    ] = 1,
    baseline: Annotated[
        str, typer.Option(metavar="CASE", help="Tests are against it. Default: random, else the first.")
    ] = "",
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="A case are runs that agree in this; may be repeated. Default: all but the seed."
        ),
    ] = None,
    correction: Annotated[str, typer.Option(help="For several comparisons: holm or none.")] = "holm",
    table: Annotated[
        list[str] | None,
        typer.Option(help="Only this: scores, budgets, targets, significance, participation or overhead."),
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Best first.")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Take unfinished runs, too.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write a .md, .tex, .csv or .json file, instead of showing it."
        ),
    ] = None,
) -> None:
    """Compare methods: means over seeds, equal budgets, work to a target, tests, participation and overhead.

    Takes sweeps, names or fingerprints of runs, or folders with results; without them all runs of the workspace.

    Example: `muster compare digits --last 5 --target 0.9 --out digits.tex`
    """
    from muster.experiment.choice import chosen_results
    from muster.report.compare import TABLES, Options, for_terminal, format_of, write_comparison
    from muster.report.compare import compare as compare_results

    if file is not None:
        format_of(file)
    options = Options(
        metric=metric,
        last=last,
        at=at,
        targets=tuple(target or ()),
        sustain=sustain,
        baseline=baseline,
        by=tuple(by or ()),
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
    out.print(f"Written: {file}", soft_wrap=True)
