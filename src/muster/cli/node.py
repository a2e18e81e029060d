"""`muster node`: a node of a Flower federation whose client app stays loaded."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.core.errors import ConfigError

#: A pair as Flower reads it: the value may be quoted.
_PAIR = re.compile(r"""[\w-]+=(?:"[^"]*"|'[^']*'|[^\s"']+)""")
#: Muster's client app, which runs the same code as the local engine.
CLIENT_APP = "muster.flower.client_app:app"


def node(  # noqa: PLR0917 (the options are what they are)
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink.", metavar="HOST:PORT")],
    root_certificates: Annotated[
        Path, typer.Option(help="Certificate of the authority that signed the SuperLink's.")
    ],
    key: Annotated[
        Path,
        typer.Option(
            "--auth-supernode-private-key", help="This node's private key; its public key is registered."
        ),
    ],
    node_config: Annotated[
        str, typer.Option(help="What this node is: key=value pairs, for example 'partition-id=0'.")
    ] = "",
    app: Annotated[str, typer.Option(help="The client app, installed here.", metavar="MODULE:NAME")] = CLIENT_APP,
    max_epochs: Annotated[int | None, typer.Option(help="Refuse more local epochs than this.", min=1)] = None,
    max_batch: Annotated[int | None, typer.Option(help="Refuse larger mini-batches than this.", min=1)] = None,
    max_memory: Annotated[
        int | None, typer.Option(help="Refuse models that need more megabytes than this.", min=1)
    ] = None,
    signals: Annotated[
        str | None, typer.Option(help="Signals that may be asked for, separated by commas. Default: all.")
    ] = None,
    max_epsilon: Annotated[
        float | None,
        typer.Option(help="Send nothing without noise; each answer has at most this epsilon.", min=0.0),
    ] = None,
    max_update_epsilon: Annotated[
        float | None,
        typer.Option(help="The same for model updates. Default: that of --max-epsilon.", min=0.0),
    ] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(help="Total epsilon of all answers, over all runs; needs --epsilon-book.", min=0.0),
    ] = None,
    epsilon_book: Annotated[Path | None, typer.Option(help="File in which that is counted.")] = None,
    allow_updates: Annotated[
        bool | None,
        typer.Option("--allow-updates", help="Train although --max-epsilon is set and updates have no noise."),
    ] = None,
    allow_evaluate: Annotated[
        bool | None,
        typer.Option("--allow-evaluate", help="Evaluate although --max-epsilon is set: its counts have no noise."),
    ] = None,
) -> None:
    """Serve a Flower federation as one of its nodes, with the client app loaded once and kept.

    Takes the options of `flower-supernode`. Only the app that is installed here runs: code from the server is
    never executed. SIGTERM and Ctrl-C sign the node off.
    """
    from muster.flower.budget import EpsilonBudget
    from muster.flower.deploy.link import Link
    from muster.flower.deploy.node import load_app, run_node

    logging.getLogger("muster.node").setLevel(logging.INFO)
    logging.getLogger("flwr").propagate = False  # it writes its messages itself
    limits = {
        "max-epochs": max_epochs,
        "max-batch": max_batch,
        "max-memory": max_memory,
        "signals": signals,
        "max-epsilon": max_epsilon,
        "max-update-epsilon": max_update_epsilon,
        "allow-updates": allow_updates,
        "epsilon-budget": epsilon_budget,
        "epsilon-book": None if epsilon_book is None else str(epsilon_book.absolute()),
        "allow-evaluate": allow_evaluate,
    }
    given = {name: value for name, value in limits.items() if value is not None}
    config = parse_node_config(node_config) | given
    EpsilonBudget.of(config)  # half of a budget shows now, not in the first round
    run_node(Link(superlink, root_certificates), key, load_app(app), config)


def parse_node_config(text: str) -> dict[str, Any]:
    """`key=value` pairs, separated by spaces; values are TOML or bare words."""
    from muster.config.experiment import apply_setting

    pairs = _PAIR.findall(text)
    if _PAIR.sub("", text).strip():
        raise ConfigError(
            f"bad --node-config {text!r}", expected="for example 'partition-id=0 site=\"north wing\"'"
        )
    values: dict[str, Any] = {}
    for pair in pairs:
        apply_setting(values, pair)
    return values
