"""The client app: routes messages to a participant, and turns what goes wrong into error replies.

A shim package needs one line: `from muster.flower.client_app import app`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from muster.config.experiment import Experiment, apply_setting, from_dict
from muster.config.identity import client_fingerprint
from muster.core.errors import ConfigError, MusterError
from muster.engine.pool import as_muster_error
from muster.flower.client import ClientData, Participant
from muster.flower.limits import Limits
from muster.flower.memory import NodeMemory
from muster.flower.signing import IDENTITY_KEY, Asked, digest, node_key, sign
from muster.flower.wire import REFUSED, WRONG_NODE, WrongNode
from muster.signals.base import signals

Verb = Callable[[Participant, RecordDict, NodeMemory], RecordDict]


def make_client_app(
    experiment: Experiment | None = None, client_data: ClientData | None = None, mods: Sequence[Any] = ()
) -> ClientApp:
    """A Flower client app for an experiment; None: the one that the run's configuration holds.

    `client_data(context) -> (train, test)` brings the node's own data; without it a node has the part of the
    experiment's data set that its `partition-id` names. `mods` are Flower's, around trainings.
    """
    app = ClientApp(mods=[_signing])  # around everything else: what is signed is what leaves the node

    def handler(verb: Verb) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                node = _Node(experiment or _received(context), context, client_data)
                client = _participant(node)
                answer = verb(client, message.content, NodeMemory(context.state, client.fingerprint))
            except Exception as error:
                code = WRONG_NODE if isinstance(error, WrongNode) else REFUSED
                return Message(Error(code, _reason(error)), reply_to=message)
            return Message(answer, reply_to=message)

        return handle

    app.train(mods=list(mods))(handler(lambda client, content, memory: client.train(content, memory)))
    app.evaluate()(handler(lambda client, content, memory: client.evaluate(content)))
    app.query("register")(handler(lambda client, content, memory: client.register(content)))
    for action in ("signals", *signals.names()):
        app.query(action)(handler(lambda client, content, memory: client.ask(content, memory)))
    return app


def _signing(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Sign what the app answers, where the node's configuration names its key."""
    path = context.node_config.get(IDENTITY_KEY)
    if path is None:
        return call_next(message, context)
    try:
        key = node_key(Path(str(path)))
    except ConfigError as error:
        return Message(Error(REFUSED, _reason(error)), reply_to=message)
    # Before the app runs, which may change what it got.
    asked = Asked(message.metadata.message_type, digest=digest(message.content))
    reply = call_next(message, context)
    if not reply.has_error():
        sign(key, asked, reply.content)
    return reply


class _Node:
    """What a participant is made of; it equals every other of the same experiment, configuration and hook."""

    def __init__(self, experiment: Experiment, context: Context, client_data: ClientData | None) -> None:
        self.experiment, self.context, self.client_data = experiment, context, client_data
        self._identity = (
            client_fingerprint(experiment.described()),
            tuple(sorted(context.node_config.items())),
            client_data,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash(self._identity)


# Of the module, not of the app: Flower's simulation sends the app again with every message.
@lru_cache(maxsize=8)
def _participant(node: _Node) -> Participant:
    return Participant(node.experiment, node.context, node.client_data)


def _received(context: Context) -> Experiment:
    """The experiment that the server sent, if it names no code that the node's owner has not allowed."""
    experiment = experiment_of(context.run_config)
    Limits.of(context.node_config).check_modules(experiment.objective)
    return experiment


def experiment_of(run_config: Any) -> Experiment:
    """The experiment in a run's configuration: TOML text in `experiment`, changes to it in `settings`."""
    text = str(run_config.get("experiment", ""))
    if not text.strip():
        raise ConfigError(
            "the run's configuration holds no experiment",
            fix="put its TOML text into `experiment` in [tool.flwr.app.config]; see `muster flower new`",
        )
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the run's experiment is not valid TOML: {error}") from error
    for setting in str(run_config.get("settings", "")).split(";"):
        if setting.strip():
            apply_setting(values, setting)
    return from_dict(values)


def _reason(error: Exception) -> str:
    known = error if isinstance(error, MusterError) else as_muster_error(error)
    return "; ".join(part for part in (known.problem, known.expected and f"expected: {known.expected}") if part)


app = make_client_app()
