"""`muster report` and `muster plot`: results as a page and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli import choosing, completion
from muster.cli.running import Workspace
from muster.console.output import out


def report(  # noqa: PLR0917 (the options are what they are)
    runs: choosing.Runs = None,
    where: choosing.Where = None,
    workspace: Workspace = None,
    metric: choosing.Metric = "accuracy",
    last: choosing.Last = 1,
    target: choosing.Targets = None,
    baseline: choosing.Baseline = "",
    by: choosing.By = None,
    problem: choosing.Problem = None,
    together: choosing.Together = False,
    spread: choosing.Spread = "interval",
    unfinished: choosing.Unfinished = False,
    title: Annotated[str, typer.Option(help="The page's title.")] = "",
    file: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Write one HTML file with tables, pictures, settings, environment, warnings, and how to repeat it all.

    Example: `muster report digits --last 5 -o digits.html`
    """
    from muster.experiment.choice import chosen_results, runs_without_rounds
    from muster.report.compare import Options
    from muster.report.page import write_report
    from muster.report.warnings import without_rounds

    options = Options(
        metric=metric,
        last=last,
        targets=tuple(target or ()),
        baseline=baseline,
        by=tuple(by or ()),
        problem=tuple(problem or ()),
        together=together,
        spread=spread,
        unfinished=unfinished,
    )
    options.check()
    results = chosen_results(runs or (), where or (), folder=workspace)
    remarks = without_rounds(runs_without_rounds(runs or (), where or (), folder=workspace))
    path = write_report(results, file, options, title=title or ", ".join(runs or ()), remarks=remarks)
    count = "1 run" if len(results) == 1 else f"{len(results)} runs"
    out.print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB, {count})", markup=False, soft_wrap=True)


def plot(  # noqa: PLR0917 (the options are what they are)
    kind: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(completion.PICTURES[:-1])} or {completion.PICTURES[-1]}.",
            autocompletion=completion.pictures,
        ),
    ],
    runs: choosing.Runs = None,
    where: choosing.Where = None,
    workspace: Workspace = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="OPTION=VALUE", help="An option of the picture, as in docs/plots.md."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A .png, .svg or .pdf file. Default: KIND.png."),
    ] = None,
) -> None:
    """Draw one picture of results.

    Example: `muster plot curves digits --set metric=loss --set per=client_trainings -o loss.png`
    """
    from muster.config.experiment import apply_setting
    from muster.experiment.choice import chosen_results
    from muster.report.plots import check_kind, draw

    options: dict[str, object] = {}
    for setting in settings or ():
        apply_setting(options, setting)
    check_kind(kind, options)
    path = file or Path(f"{kind}.png")
    draw(kind, chosen_results(runs or (), where or (), folder=workspace), path=path, **options)
    out.print(f"Picture: {path}", markup=False, soft_wrap=True)
