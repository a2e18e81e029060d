"""`muster flower`: apps for Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.console.output import out
from muster.core.errors import ConfigError

flower_app = typer.Typer(no_args_is_help=True, help="Take an experiment to a Flower federation.")


@flower_app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app; its name becomes the package's.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The experiment, a TOML file. Default: the quickstart's."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="SECTION.KEY=VALUE", help="Change a setting; may be given several times."
        ),
    ] = None,
) -> None:
    """Write a Flower app that runs an experiment: `flwr run` takes it in simulation and against a SuperLink.

    Example: `muster flower new digits-app --config examples/digits.toml`
    """
    try:
        from muster.flower.new_app import DEFAULT_EXPERIMENT, write_app
    except ImportError as error:
        raise ConfigError("Flower is not installed", fix="pip install 'muster-fl[flower]'") from error
    text = DEFAULT_EXPERIMENT
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the config {config}: {error}") from error
    path = write_app(folder, text, settings or [])
    out.print(f"App: {path}", markup=False, soft_wrap=True)
    out.print(f"Run it: flwr run {path} CONNECTION --stream", soft_wrap=True, markup=False)
    out.print("CONNECTION is an entry of Flower's config.toml, for a simulation or a SuperLink (docs/flower.md).")
