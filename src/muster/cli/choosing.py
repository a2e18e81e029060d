"""Options of the commands that look at results: which runs, and what to compare."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Sweeps, names or fingerprints of runs in the workspace, or folders with results. Default: all.",
        metavar="RUN|SWEEP|FOLDER",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="SECTION.KEY=VALUE",
        help="Only runs with this setting, given or by default; may be repeated.",
    ),
]
Metric = Annotated[str, typer.Option("--metric", help="The metric to compare.")]
Last = Annotated[int, typer.Option("--last", help="Mean of the last K evaluations.", metavar="K", min=1)]
Targets = Annotated[
    list[float] | None,
    typer.Option("--target", help="Target value of the metric. Default: the baseline's mean at the end."),
]
Baseline = Annotated[
    str,
    typer.Option("--baseline", metavar="CASE", help="The case to test against. Default: random, else the first."),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="KEY",
        help="A case is all runs that agree in this setting; may be repeated. Default: all but seed.",
    ),
]
Problem = Annotated[
    list[str] | None,
    typer.Option(
        "--problem",
        metavar="KEY",
        help="Runs that differ in this setting are different problems too, as they are where data, partition, "
        "model, local training, rounds, devices or availability differ; may be repeated.",
    ),
]
Together = Annotated[bool, typer.Option("--together", help="One table for all problems.")]
Spread = Annotated[
    Literal["interval", "deviation"],
    typer.Option(
        "--spread", help="What to show with a mean: its 95 % interval, or the standard deviation over seeds."
    ),
]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Compare unfinished runs too.")]
