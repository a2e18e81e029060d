"""`muster inspect`: how heterogeneous a federation is, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.console.output import out


def inspect(
    source: Annotated[
        Path,
        typer.Argument(
            help="An experiment (TOML); a table of counts, clients × classes (× attributes): CSV, JSON or NPY; "
            "or a folder with files in CLIENT/CLASS or CLIENT/CLASS/ATTRIBUTE.",
            metavar="CONFIG.toml|COUNTS|FOLDER",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Change a setting of the experiment."),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(help="Clients that take part in a round. Default: as the experiment says, else a tenth."),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where page and pictures go.")] = Path("inspection"),
) -> None:
    """Measure class imbalance, attribute imbalance, spurious correlation, label divergence and sizes; advise.

    Example: `muster inspect examples/digits.toml`
    """
    from muster.experiment.inspection import inspect_source
    from muster.report.inspection import inspection_text, save_inspection

    inspection = inspect_source(source, settings or [], cohort)
    out.print(inspection_text(inspection))
    page, *pictures = save_inspection(inspection, folder)
    out.print(f"Page: {page}", soft_wrap=True)
    out.print(f"Pictures: {', '.join(map(str, pictures))}", soft_wrap=True)
