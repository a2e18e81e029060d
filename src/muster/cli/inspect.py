"""`muster inspect`: how heterogeneous a federation is, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.console.output import err, out


def inspect(  # noqa: PLR0917 (the options are what they are)
    source: Annotated[
        Path,
        typer.Argument(
            help="An experiment (TOML); a table with a row for each sample, or of counts, clients × classes "
            "(× attributes): CSV, Parquet, JSON or NPY; or a folder with files in CLIENT/CLASS or "
            "CLIENT/CLASS/ATTRIBUTE.",
            metavar="CONFIG.toml|TABLE|FOLDER",
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
    client: Annotated[
        str | None, typer.Option(help="The table's column with the client of each sample. Default: client.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The table's column with each sample's class. Default: class, or label.")
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option(help="The table's column with each sample's attribute. Default: attribute, if any."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder for a page and pictures. Default: none.")
    ] = None,
) -> None:
    """Measure class imbalance, attribute imbalance, spurious correlation, label divergence and sizes.

    Says what stands out, and which methods helped on federations like this one.

    Example: `muster inspect examples/digits.toml --out look`
    """
    from muster.experiment.inspection import inspect_source
    from muster.heterogeneity.tables import ColumnNames
    from muster.league.evidence import recommended
    from muster.report.inspection import inspection_text, save_inspection

    inspection = recommended(inspect_source(source, settings or [], cohort, ColumnNames(client, label, attribute)))
    if inspection.counts.remark:
        err.print(inspection.counts.remark, markup=False, soft_wrap=True)
    out.print(inspection_text(inspection))
    if folder is None:
        out.print("A page and pictures: --out FOLDER", style="dim")
        return
    page, *pictures = save_inspection(inspection, folder)
    out.print(f"Page: {page}", markup=False, soft_wrap=True)
    out.print(f"Pictures: {', '.join(map(str, pictures))}", markup=False, soft_wrap=True)
