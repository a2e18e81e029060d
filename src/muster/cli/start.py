"""`muster init`, `muster show` and `muster schema`: from an empty folder to an experiment that runs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from muster.cli import completion
from muster.console.output import out
from muster.core.errors import ConfigError, OutputError

SCHEMA = "muster.schema.json"
FILES = ("experiment.toml", "sweep.toml")


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder; it is created if need be.")
    ] = Path(),
) -> None:
    """Write a commented experiment and a sweep to begin with, and the schema with which editors check them.

    Example: `muster init my-study && cd my-study && muster run experiment.toml`
    """
    texts = {name: (resources.files("muster.cli") / "templates" / name).read_text("utf-8") for name in FILES}
    texts[SCHEMA] = _schema_text()
    taken = [name for name in texts if (folder / name).exists()]
    if taken:
        raise ConfigError(
            f"{folder} already has {', '.join(taken)}: nothing was written",
            fix="choose another folder, or move the file away",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}", fix="choose another folder") from error
    for name in texts:
        out.print(f"Written: {folder / name}", markup=False, soft_wrap=True)
    out.print(f"Next: muster run {folder / FILES[0]}", markup=False, soft_wrap=True)


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, data set, partition, model, …: see `muster list`.", autocompletion=completion.methods
        ),
    ],
) -> None:
    """Show what a component is: options with types and defaults, what it costs and discloses, where to read more.

    Example: `muster show terraform`
    """
    from muster.cli.describe import show_component

    show_component(name)


def schema(
    file: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")
    ] = None,
) -> None:
    """Print the JSON schema of experiment files: with it, editors complete keys and underline mistakes."""
    text = _schema_text()
    if file is None:
        print(text, end="")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror}", fix="choose another file") from error
    out.print(f"Written: {file}", markup=False, soft_wrap=True)


def _schema_text() -> str:
    import json

    from muster.config.schema import experiment_schema

    return json.dumps(experiment_schema(), indent=1, ensure_ascii=False) + "\n"
