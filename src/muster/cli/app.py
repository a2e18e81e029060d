"""Commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer.core import TyperArgument

from muster._version import __version__
from muster.cli.compare import compare
from muster.cli.data import data_app
from muster.cli.deploy import deploy_app
from muster.cli.flower import flower_app
from muster.cli.inspect import inspect
from muster.cli.league import league
from muster.cli.node import node
from muster.cli.replay import replay
from muster.cli.report import plot, report
from muster.cli.reproduce import reproduce
from muster.cli.running import (
    Config,
    Folder,
    JsonLines,
    Resume,
    Settings,
    Workspace,
    again,
    conclude,
    tell_beginning,
)
from muster.cli.runs import export, runs_app
from muster.cli.start import init, schema, show
from muster.cli.sweep import sweep
from muster.cli.ui import ui
from muster.console.output import err, out


def _keep_help_of_arguments() -> None:
    """Typer below 0.21, the newest that Flower allows, loses the help of arguments with click from 8.5 on: click
    has a help of its own, and sets it after Typer has."""
    make = TyperArgument.__init__

    def keep(self: TyperArgument, *words: Any, help: str | None = None, **options: Any) -> None:
        make(self, *words, help=help, **options)
        self.help = help

    TyperArgument.__init__ = keep  # type: ignore[method-assign]


_keep_help_of_arguments()
#: Whether the library that parses suggests commands itself, as click does from 8.5 on.
_SUGGESTS = hasattr(getattr(typer.core, "click", None), "NoSuchCommand")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    suggest_commands=not _SUGGESTS,
    help="**Muster**: client selection and aggregation for federated learning on heterogeneous data.\n\n"
    "Start with `muster quickstart`, look at `muster list`, then `muster run CONFIG.toml`.",
)

Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", help="Worker processes; 0: in this process. Default: one per core."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="TRACKER", help="tensorboard, mlflow or wandb (offline); may be given several times."
    ),
]


def _print_version(asked: bool) -> None:
    if asked:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="%(levelname)s %(message)s")


def run(  # noqa: PLR0917 (the options are what they are)
    config: Config,
    settings: Settings = None,
    resume: Resume = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            "-n",
            help="This many rounds instead of the file's; a run that is complete with fewer is extended.",
        ),
    ] = None,
    workers: Workers = None,
    folder: Folder = None,
    workspace: Workspace = None,
    json_lines: JsonLines = False,
    track: Track = None,
) -> None:
    """Run an experiment.

    Example: `muster run examples/digits.toml --set selection.method=terraform --set seed=1`
    """
    from muster.console.progress import StopAfterRound, progress_for
    from muster.experiment import load
    from muster.experiment import run as run_experiment
    from muster.results.store import plain_folder
    from muster.results.store import workspace as workspace_folder

    experiment = load(config, [*(settings or []), *([] if rounds is None else [f"rounds={rounds}"])])
    if experiment.centralised:
        unused = ", ".join(f"[{name}]" for name in experiment.unused())
        ignored = f"; not used: {unused}" if unused else ""
        err.print(f"centralised: one model on the data of all clients{ignored}", markup=False, soft_wrap=True)
    if track:
        experiment.tracking = {**experiment.tracking, "to": track}
    tracked = [word for name in track or [] for word in ("--track", name)]
    length = [] if rounds is None else ["--rounds", str(rounds)]
    command = again(["muster", "run", str(config), *length, *tracked], settings, folder, workspace)
    store = None if folder else workspace_folder(workspace)
    folder = folder or plain_folder(workspace_folder(workspace), experiment)
    extend = resume or rounds is not None
    if extend:
        tell_beginning(experiment, store or folder, resume and store is not None)
    with progress_for(err, experiment.title, json_lines) as progress, StopAfterRound() as stopper:
        observers = [progress, stopper]
        result = run_experiment(
            experiment, workers, out=folder, store=store, resume=resume, extend=extend, observers=observers
        )
    conclude(result, folder, json_lines, command)


def quickstart(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where the picture and results go.")] = Path(
        "muster-quickstart"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds for each method.", min=1)] = 30,
    workers: Workers = None,
) -> None:
    """Watch a federation of very different clients train, with methods compared in a table and a picture.

    Uses the digits that come with scikit-learn: nothing is downloaded.
    """
    from muster.cli.show import show_comparison
    from muster.console.progress import progress_for
    from muster.experiment.quickstart import experiments
    from muster.experiment.runner import checked_folder
    from muster.experiment.runner import run as run_experiment
    from muster.report.plots import plot_curves, plot_selection_map, save_figure

    checked_folder(folder)
    results = []
    for experiment in experiments(rounds):
        with progress_for(err, experiment.title, json_lines=False) as progress:
            result = run_experiment(experiment, workers, observers=[progress], store=folder, resume=True)
        result.save(folder / experiment.title)
        results.append(result)
    show_comparison(results)
    title = "Digits, 40 clients: the first have nearly one class each, the last nearly all"
    for name, figure in (
        ("comparison.png", plot_curves(results, title=title)),
        ("who-was-chosen.png", plot_selection_map(results)),
    ):
        save_figure(figure, folder / name)
        out.print(f"Picture: {folder / name}", markup=False, soft_wrap=True)
    for line in (
        f"Results: {folder}/*/metrics.csv",
        f"See who was chosen, round by round: muster ui --workspace {folder} --open",
        "Next, an experiment of your own: muster init my-federation",
    ):
        out.print(line, markup=False, soft_wrap=True)


def list_components(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods (selection, aggregation), algorithms, data, partitions, models, workloads, …"
        ),
    ] = None,
    privacy: Annotated[bool, typer.Option("--privacy", help="What leaves the clients, for each method.")] = False,
) -> None:
    """List methods, data sets, partitions and models, with one line each."""
    from muster.cli.show import show_components, show_privacy

    if privacy:
        show_privacy(kind)
    else:
        show_components(kind)


#: Commands in the order of work, group by group, as `muster --help` shows them.
_GROUPS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Begin": {
        "quickstart": quickstart,
        "init": init,
        "list": list_components,
        "show": show,
        "schema": schema,
        "data": data_app,
        "inspect": inspect,
    },
    "Run": {"run": run, "sweep": sweep, "reproduce": reproduce, "league": league, "replay": replay},
    "Look at results": {
        "ui": ui,
        "compare": compare,
        "report": report,
        "plot": plot,
        "runs": runs_app,
        "export": export,
    },
    "Real federations": {"flower": flower_app, "deploy": deploy_app, "node": node},
}
for _group, _commands in _GROUPS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_group)
        else:
            app.command(_name, rich_help_panel=_group)(_command)
