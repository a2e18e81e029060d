"""`muster deploy`: experiments on real federations."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.running import (
    Config,
    Folder,
    JsonLines,
    Resume,
    Settings,
    Workspace,
    again,
    conclude,
    tell_if_anew,
)
from muster.console.output import err, out
from muster.core.errors import ConfigError

if TYPE_CHECKING:
    from muster.config.experiment import Experiment
    from muster.flower.deploy.driver import Task
    from muster.server.loop import Observer

deploy_app = typer.Typer(no_args_is_help=True, help="Run an experiment on a federation of real processes.")


@deploy_app.command()
def local(  # noqa: PLR0917 (the options are what they are)
    config: Config,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes to start. Default: one for each client.", min=1)
    ] = None,
    settings: Settings = None,
    resume: Resume = False,
    folder: Folder = None,
    workspace: Workspace = None,
    json_lines: JsonLines = False,
    stock: Annotated[
        bool, typer.Option("--stock", help="Flower's own nodes and commands only: any version, but slower.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep keys and logs, and say where they are.")] = False,
) -> None:
    """Start a federation on this machine, run an experiment on it, and stop everything.

    A SuperLink with TLS and node authentication and one process per node, on loopback, with keys made for it.
    Ctrl-C ends the round and stops; the same command with `--resume` continues.

    Example: `muster deploy local examples/digits.toml --set partition.clients=5
    --set selection.clients_per_round=4`
    """
    from muster.flower.deploy.driver import run_on_link
    from muster.flower.deploy.federation import LocalFederation
    from muster.flower.deploy.stock import run_stock

    task = _task(config, settings, resume, folder, workspace)
    experiment = task.experiment
    count = _count(experiment, nodes)
    _check(experiment)
    with _folder(keep) as place:
        err.print(
            f"starting a SuperLink and {count} nodes, logs in {place / 'logs'}", soft_wrap=True, markup=False
        )
        with LocalFederation(place, count, stock=stock) as federation:
            if stock:
                allowed = f"flower.allow_list={federation.allow_list}"
                stocked = replace(task, settings=[*task.settings, allowed])
                result = run_stock(stocked, federation, lambda done, of: err.print(f"round {done}/{of}"))
            else:
                with _watched(experiment, json_lines) as observers:
                    result = run_on_link(task, federation.link, observers, allow_list=federation.allow_list)
    command = ["muster", "deploy", "local", str(config), "--nodes", str(count), *(["--stock"] if stock else [])]
    conclude(result, task.out, json_lines, again(command, settings, folder, workspace))


@deploy_app.command("run")
def run_there(  # noqa: PLR0917 (the options are what they are)
    config: Config,
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink.", metavar="HOST:PORT")],
    root_certificates: Annotated[
        Path, typer.Option(help="Certificate of the authority that signed the SuperLink's.")
    ],
    settings: Settings = None,
    resume: Resume = False,
    folder: Folder = None,
    workspace: Workspace = None,
    json_lines: JsonLines = False,
    allow_list: Annotated[
        Path | None,
        typer.Option(help="File that says which client signs with which key. Default: flower.allow_list."),
    ] = None,
) -> None:
    """Run an experiment on an existing federation: this process is the server.

    The SuperLink must have been started with `--isolation process`. Its control interface has no login: run this
    where the SuperLink runs, or through a tunnel.
    """
    from muster.flower.deploy.driver import run_on_link
    from muster.flower.deploy.link import Link

    task = _task(config, settings, resume, folder, workspace)
    with _watched(task.experiment, json_lines) as observers:
        result = run_on_link(task, Link(superlink, root_certificates), observers, allow_list=allow_list)
    command = ["muster", "deploy", "run", str(config), "--superlink", superlink]
    command += ["--root-certificates", str(root_certificates)]
    command += [] if allow_list is None else ["--allow-list", str(allow_list)]
    conclude(result, task.out, json_lines, again(command, settings, folder, workspace))


@deploy_app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="A folder for the keys; nothing in it is overwritten.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address under which the SuperLink is reached; may be given several times."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            help="A node's name, or NAME=NUMBER for the node that has this partition; may be given several times."
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.", min=1)] = 90,
) -> None:
    """Make the keys of a federation: an authority, the SuperLink's certificate, a key pair for each node.

    A folder that already has an authority keeps it: new nodes and a renewed certificate are added. The file
    `allowed-clients` says which key speaks for which client, for `muster deploy run --allow-list`.
    """
    from muster.flower.allowlist import add_client
    from muster.flower.deploy import pki

    authority = pki.Authority(folder / "ca.crt", folder / "ca.key")
    named = [_named(word) for word in node or []]
    # Its key may be kept elsewhere: it is needed for certificates, not for keys of nodes.
    if not (authority.key.exists() or authority.certificate.exists()):
        authority = pki.make_authority(folder)
        out.print(f"Authority: {authority.certificate} (give it to everyone), {authority.key} (keep it offline)")
    if host:
        server = pki.make_server_certificate(folder, authority, host, days)
        out.print(f"SuperLink: {server.certificate}, {server.key}")
    for name, identity in named:
        pair = pki.make_node_key(folder, name)
        add_client(folder / pki.ALLOW_LIST, identity, pair.public)
        out.print(f"Node {name}: {pair.private} (to the node), {pair.public} (register it)")
    if node:
        out.print(f"Allow-list: {folder / pki.ALLOW_LIST} (to the server)")


def _named(word: str) -> tuple[str, str]:
    """The name of a node's key file, and the identity that it stands for: "clinic-a", or "clinic-a=0"."""
    name, equals, number = word.partition("=")
    if name and not equals:
        return name, f"name={name}"
    if not name or not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"bad --node {word!r}", expected="a name, or NAME=NUMBER with the number of a partition")
    return name, f"partition-id={int(number)}"


def _task(
    config: Path, settings: list[str] | None, resume: bool, folder: Path | None, workspace: Path | None
) -> Task:
    from muster.experiment import load
    from muster.flower.deploy.driver import Task
    from muster.results.store import plain_folder
    from muster.results.store import workspace as workspace_folder

    logging.getLogger("flwr").setLevel(logging.WARNING)  # it reports every connection
    experiment = load(config, settings or [])
    store = None if folder else workspace_folder(workspace)
    place = folder or plain_folder(workspace_folder(workspace), experiment)
    if resume and store is not None:  # a separate folder refuses other runs
        tell_if_anew(experiment, store)
    return Task(config, place, settings or [], store, resume)


@contextmanager
def _watched(experiment: Experiment, json_lines: bool) -> Iterator[list[Observer]]:
    from muster.console.progress import StopAfterRound, progress_for

    with progress_for(err, experiment.title, json_lines) as progress, StopAfterRound() as stopper:
        yield [progress, stopper]


def _count(experiment: Experiment, nodes: int | None) -> int:
    """How many nodes to start: one for each client, unless the experiment says that fewer will do."""
    clients = experiment.partition.get("clients") if isinstance(experiment.partition, dict) else None
    if nodes is None:
        if not isinstance(clients, int):
            raise ConfigError("the experiment does not say how many clients there are", fix="give --nodes")
        return clients
    if isinstance(clients, int) and clients != nodes and "nodes" not in experiment.flower:
        raise ConfigError(
            f"the experiment divides its data over {clients} clients, and {nodes} nodes are asked for",
            expected="one node for each client",
            fix=f"--set partition.clients={nodes}, or --set flower.nodes={nodes} to run without the others",
        )
    return nodes


def _check(experiment: Experiment) -> None:
    """Find mistakes in the description before a federation is started, if the data are on this machine."""
    from muster.experiment.parts import build_parts

    if isinstance(experiment.data, dict) and experiment.data.get("source") == "own":
        return
    parts = build_parts(experiment, workers=0)
    with parts.engine:
        parts.server().check(experiment.rounds)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="muster-federation-"))
        return
    with tempfile.TemporaryDirectory(prefix="muster-federation-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
