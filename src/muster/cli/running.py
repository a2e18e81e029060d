"""What all commands that run an experiment have in common: options, and the final message."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.console.output import err

if TYPE_CHECKING:
    from muster.config.experiment import Experiment
    from muster.server.result import Result

Config = Annotated[Path, typer.Argument(help="The experiment, a TOML file.", metavar="CONFIG.toml")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Change a setting; may be given several times."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue where an earlier run stopped.")]
Folder = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A folder for this run alone. Default: WORKSPACE/NAME-FINGERPRINT."),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace", help="The folder with the results store muster.db. Default: MUSTER_WORKSPACE, or runs."
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per round, for machines.")]


def tell_if_anew(experiment: Experiment, folder: Path) -> None:
    """If `--resume` finds nothing to continue, say so, and which run may have been meant."""
    from muster.results.store import DATABASE, Store

    others = []
    if (folder / DATABASE).exists():
        with Store(folder) as store:
            if any(run.done for run in store.runs(fingerprint=experiment.fingerprint)):
                return
            others = [run for run in store.other_lengths(experiment) if run.done]
    known = ", ".join(f"{run.fingerprint[:8]} with {run.done} of {run.rounds} rounds" for run in others)
    why = f"; with a different number of rounds it is a different run ({known})" if others else ""
    err.print(
        f"--resume: {folder} has nothing to continue, so this starts at round 1{why}",
        soft_wrap=True,
        markup=False,
    )


def again(
    command: Sequence[str], settings: list[str] | None, folder: Path | None, workspace: Path | None
) -> list[str]:
    """The command with the options that it was given, for continuing the run."""
    changed = [word for setting in settings or [] for word in ("--set", setting)]
    place = ["--out", str(folder)] if folder else ["--workspace", str(workspace)] if workspace else []
    return [*command, *changed, *place, "--resume"]


def conclude(result: Result, folder: Path, json_lines: bool, command: Sequence[str]) -> None:
    """Show a result; if the run was stopped, say how to continue, and exit with its code."""
    from muster.cli.show import show_result
    from muster.results.files import to_json

    if json_lines:
        print(to_json({"event": "result", "out": str(folder), **result.summary()}))
    else:
        show_result(result, folder)
    if not result.complete:
        err.print(
            f"stopped after round {len(result.records)}; continue with: {shlex.join(command)}",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130)
