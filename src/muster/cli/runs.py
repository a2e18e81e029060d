"""`muster runs` and `muster export`: what is in the store."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.choosing import Where
from muster.cli.running import Workspace
from muster.console.output import out

if TYPE_CHECKING:
    from muster.results.store import Run, Store

runs_app = typer.Typer(
    no_args_is_help=False, invoke_without_command=True, help="List, show and delete the runs of a workspace."
)


class StatusOption(StrEnum):
    """What `--status` takes."""

    planned = "planned"
    running = "running"
    interrupted = "interrupted"
    stopped = "stopped"
    complete = "complete"
    failed = "failed"


class FormatOption(StrEnum):
    """What `--format` takes."""

    parquet = "parquet"
    csv = "csv"


Sweep = Annotated[str | None, typer.Option("--sweep", help="Only runs of this sweep.")]
Name = Annotated[str | None, typer.Option("--name", help="Only runs of this name.")]
Method = Annotated[str | None, typer.Option("--method", help="Only runs with this selection method.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Only runs with this seed.")]
Statuses = Annotated[
    list[StatusOption] | None, typer.Option("--status", help="Only runs with this status; may be repeated.")
]
Ids = Annotated[
    list[str], typer.Argument(help="Beginnings of fingerprints, as in `muster runs`.", metavar="RUN...")
]


@runs_app.callback()
def list_runs(  # noqa: PLR0917 (the options are what they are)
    context: typer.Context,
    sweep: Sweep = None,
    name: Name = None,
    method: Method = None,
    seed: Seed = None,
    status: Statuses = None,
    where: Where = None,
    workspace: Workspace = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per run, for machines.")] = False,
) -> None:
    """List the runs of a workspace; options choose among them.

    Example: `muster runs --sweep sweep-digits --status failed`
    """
    if context.invoked_subcommand is not None:
        context.obj = workspace
        return
    from muster.cli.show_runs import show_runs
    from muster.results.files import to_json

    with _store(workspace) as store:
        runs = _chosen(store, sweep, name, method, seed, status, where)
    if json_lines:
        for run in runs:
            print(to_json(vars(run)))
    else:
        show_runs(runs)


@runs_app.command("show")
def show(context: typer.Context, ids: Ids, workspace: Workspace = None) -> None:
    """Everything about a run: settings, how it ended, what happened, what it cost."""
    from muster.cli.show_runs import show_run

    with _store(workspace or context.obj) as store:
        for run in [store.run(word) for word in ids]:
            show_run(store, run)


@runs_app.command("delete")
def delete(  # noqa: PLR0917 (the options are what they are)
    context: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Beginnings of fingerprints.", metavar="[RUN]...")
    ] = None,
    sweep: Sweep = None,
    status: Statuses = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    workspace: Workspace = None,
) -> None:
    """Delete runs from the store, with their checkpoints; plain result files stay.

    Example: `muster runs delete --status failed`
    """
    from muster.cli.show_runs import show_runs
    from muster.core.errors import ConfigError

    if not (ids or sweep or status):
        raise ConfigError("nothing was chosen to delete", expected="runs, --sweep or --status")
    with _store(workspace or context.obj) as store:
        runs = [store.run(word) for word in ids] if ids else _chosen(store, sweep=sweep, status=status)
        show_runs(runs)
        if not runs:
            return
        if not yes and not typer.confirm(f"Delete {_count(runs)} and their checkpoints?"):
            raise typer.Exit(1)
        for run in runs:
            store.delete(run)
    out.print(f"{_count(runs)} deleted")


def export(  # noqa: PLR0917 (the options are what they are)
    folder: Annotated[Path | None, typer.Argument(help="Where the files go.", metavar="[FOLDER]")] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Write a run's trained model: .pt or .safetensors.")
    ] = None,
    form: Annotated[
        FormatOption, typer.Option("--format", help="The format of the files.")
    ] = FormatOption.parquet,
    sweep: Sweep = None,
    name: Name = None,
    method: Method = None,
    seed: Seed = None,
    status: Statuses = None,
    where: Where = None,
    only: Annotated[
        str | None, typer.Option("--run", help="Only the run whose fingerprint, as in `muster runs`, begins so.")
    ] = None,
    workspace: Workspace = None,
) -> None:
    """Write runs as Parquet or CSV tables for other programs, or a trained model.

    Tables: runs, rounds, selections, reports and events.

    Examples: `muster export tables --sweep sweep-digits --format csv`, `muster export --model out.pt --run 3457f5`
    """
    from muster.core.errors import ConfigError
    from muster.results.export import export as export_runs

    if folder is None and model is None:
        raise ConfigError("nothing was chosen to write", expected="a FOLDER for tables, or --model FILE")
    with _store(workspace) as store:
        runs = _chosen(store, sweep, name, method, seed, status, where)
        if only is not None:
            runs = [run for run in runs if run.fingerprint == store.run(only).fingerprint]
        if not runs:
            raise ConfigError(f"no run in {store.path} matches", fix="see `muster runs`")
        if model is not None:
            _export_model(store, runs, model)
        if folder is None:
            return
        files = export_runs(store, runs, folder, form.value)
    out.print(
        f"{_count(runs)}: {', '.join(file.name for file in files)} in {folder}", markup=False, soft_wrap=True
    )


def _export_model(store: Store, runs: Sequence[Run], path: Path) -> None:
    from muster.core.errors import ConfigError
    from muster.experiment.networks import save_network

    if len(runs) > 1:
        raise ConfigError(
            f"{_count(runs)} match, and a file holds one model",
            expected=f"one of {_told(runs)}",
            fix=f"choose one, as in --run {runs[0].fingerprint[:8]}",
        )
    save_network(store.result(runs[0]), path)
    out.print(f"the model of '{runs[0].name}' after {runs[0].done} rounds: {path}", markup=False, soft_wrap=True)


def _store(workspace: Path | None) -> Store:
    from muster.results.store import Store
    from muster.results.store import workspace as workspace_folder

    return Store(workspace_folder(workspace), create=False)


def _chosen(  # noqa: PLR0917 (the options are what they are)
    store: Store,
    sweep: str | None = None,
    name: str | None = None,
    method: str | None = None,
    seed: int | None = None,
    status: Sequence[StatusOption] | None = None,
    where: Sequence[str] | None = None,
) -> list[Run]:
    from muster.experiment.choice import conditions

    return store.runs(
        sweep=sweep,
        name=name,
        method=method,
        seed=seed,
        status=[one.value for one in status or ()],
        where=conditions(where or ()),
    )


def _told(runs: Sequence[Run]) -> str:
    """The first few of many runs, in words."""
    some = [f"{run.fingerprint[:8]} ({run.name}, seed {run.seed}, {run.done} rounds)" for run in runs[:6]]
    more = f" and {len(runs) - len(some)} more, which `muster runs` lists" if len(runs) > len(some) else ""
    return ", ".join(some) + more


def _count(runs: Sequence[Run]) -> str:
    return f"{len(runs)} run" if len(runs) == 1 else f"{len(runs)} runs"
