"""A warm node: one process that stays loaded, talks to the SuperLink as a SuperNode does, and runs one client app.

Stock Flower starts a Python process for every message. Besides being quicker, this node runs only the client app
that is installed on it: code that comes from the SuperLink is never executed, and no port is opened.
"""

from __future__ import annotations

import importlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flwr.clientapp import ClientApp

from muster.core.errors import ConfigError, EngineError
from muster.flower.deploy.version import check_version
from muster.flower.signing import IDENTITY_KEY

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from muster.flower.deploy.flower_internals.node import NodeConnection
    from muster.flower.deploy.link import Link

log = logging.getLogger("muster.node")

#: Seconds between two polls for a message: soon after the last one, and when nothing has come for a while.
POLL_BUSY, POLL_IDLE, IDLE_AFTER = 0.15, 1.0, 60.0


class _Stop(SystemExit):
    """The node was asked to end: it signs off and leaves with exit code 0."""


def load_app(reference: str) -> ClientApp:
    """The client app that `module:name` refers to, from what is installed here."""
    module, colon, name = reference.partition(":")
    if not colon:
        raise ConfigError(f"bad client app '{reference}'", expected="module:name")
    try:
        app = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load the client app '{reference}': {error}") from error
    if not isinstance(app, ClientApp):
        raise ConfigError(f"'{reference}' is a {type(app).__name__}", expected="a flwr.clientapp.ClientApp")
    return app


def run_node(link: Link, private_key: Path, app: ClientApp, node_config: Mapping[str, Any]) -> None:
    """Serve until SIGTERM or Ctrl-C, then sign off."""
    check_version()
    from muster.flower.deploy.flower_internals.node import connect_node

    failure: Exception | None = None
    try:
        # The app signs its answers with the key by which the SuperLink knows the node, unless it is told another.
        # What a server's experiment names is not imported here, unless the owner says so.
        config = {IDENTITY_KEY: str(private_key), "allow-modules": "", **node_config}
        with _ending_on_sigterm(), connect_node(link, private_key, config) as connection:
            log.info("node %d is ready", connection.node_id)
            try:
                _serve(connection, app)
            except Exception as error:  # kept until the node has signed off: Flower would swallow it there
                failure = error
    except _Stop:
        log.info("signed off")
        return
    except SystemExit as exit:  # Flower has said why in its own words
        raise EngineError(
            f"the SuperLink at {link.address} did not admit this node",
            expected="a node whose public key is registered, and which is not already running",
            fix="`flwr supernode register KEY.pub`, and check --root-certificates; after a crash a node is taken "
            "in again within a minute",
        ) from exit
    if failure is not None:
        raise EngineError(f"the node cannot continue: {type(failure).__name__}: {failure}") from failure


def _serve(connection: NodeConnection, app: Callable[[Message, Context], Message]) -> None:
    from muster.flower.deploy.flower_internals.node import TROUBLE

    busy = time.monotonic()
    while True:
        try:
            got = connection.receive()
            if got is not None:
                _work(connection, app, *got)
                busy = time.monotonic()
                continue
        except TROUBLE as error:
            log.warning("a message was lost: %s: %s", type(error).__name__, error)
        time.sleep(POLL_BUSY if time.monotonic() - busy < IDLE_AFTER else POLL_IDLE)


def _work(
    connection: NodeConnection, app: Callable[[Message, Context], Message], message: Message, context: Context
) -> None:
    from muster.flower.deploy.flower_internals.node import error_reply

    started = time.monotonic()
    try:
        reply = app(message, context)
    except Exception as error:  # the app's mistake is an answer, not the end of the node
        log.exception("the client app raised an error")
        reply = error_reply(message, error)
    seconds = time.monotonic() - started
    connection.send(reply, seconds)
    told = f"failed: {reply.error.reason}" if reply.has_error() else "done"
    log.info("%s %s: %s in %.2f s", message.metadata.message_type, message.metadata.group_id, told, seconds)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stop(0)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
