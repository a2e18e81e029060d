"""`muster replay`: a run once more, with its recorded arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.running import Workspace
from muster.console.output import err, out

#: Differences that are shown; the first ones say most.
_SHOWN = 5


def replay(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's name, the beginning of its fingerprint, or a folder with the store of one run.",
            metavar="RUN|FOLDER",
        ),
    ],
    workspace: Workspace = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", help="Worker processes; 0: in this process. Default: one per core."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for plain result files of the repetition.")
    ] = None,
    any_version: Annotated[
        bool, typer.Option("--any-version", help="Allow a run that another version of Muster made.")
    ] = False,
) -> None:
    """Repeat a run of a Flower federation on this machine, in the order in which its answers arrived.

    Selections, weights and parameters are compared with what the store has; the exit code is 1 if a bit differs.
    Runs with simulated devices can be repeated too.

    Example: `muster replay clinics-out`
    """
    from muster.console.progress import progress_for
    from muster.experiment.repetition import replay as replay_run
    from muster.experiment.runner import checked_folder

    if folder is not None:
        checked_folder(folder)
    with progress_for(err, f"replay of {run}", json_lines=False) as progress:
        done = replay_run(run, folder=workspace, workers=workers, any_version=any_version, observers=[progress])
    if folder is not None:
        done.again.save(folder)
    rounds = len(done.again.records)
    if not done.differences:
        out.print(f"{rounds} rounds repeated: selections, weights and parameters are the same to the bit")
        return
    out.print(f"{rounds} rounds repeated, with differences:")
    for line in done.differences[:_SHOWN]:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    if len(done.differences) > _SHOWN:
        out.print(f"  and {len(done.differences) - _SHOWN} more")
    for line in done.suspicions:
        out.print(f"The reason may be: {line}.", markup=False, soft_wrap=True)
    raise typer.Exit(1)
