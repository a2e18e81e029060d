"""A rehearsal of a Flower app: its server and all its nodes in this process, without Ray and without a network.

For notebooks and tests: it starts at once, and a debugger reaches the app's code. Nodes work one after the other:
it says nothing about time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from muster.core.errors import ConfigError
from muster.flower.deploy.flower_internals.node import as_a_task, error_reply, over_the_wire

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

#: Node ids neither start at zero nor follow the order of the partitions: nobody should rely on either.
_LAST_NODE, _STEP = 9_001, 7


def rehearse(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    *,
    run_config: Mapping[str, Any] | None = None,
    node_config: Mapping[str, Any] | None = None,
) -> None:
    """Let a server app work with nodes that all have this client app, until its `main` returns.

    Nodes have a `partition-id` from 0 and `num-partitions` in their configuration, as in Flower's simulation, and
    what `node_config` adds. Messages are written as bytes and read again, so what cannot travel does not work
    here either.
    """
    if nodes < 1:
        raise ConfigError(f"a rehearsal with {nodes} nodes", expected="at least 1")
    configs = [{"partition-id": number, "num-partitions": nodes, **(node_config or {})} for number in range(nodes)]
    grid = RehearsalGrid(client_app, configs, run_config or {})
    with as_a_task():
        server_app(grid, Context(1, 0, {}, RecordDict(), dict(run_config or {})))


class RehearsalGrid(Grid):
    """Hands messages to a client app in this process; every node has a context that lasts as long as the grid."""

    def __init__(
        self, app: ClientApp, node_configs: Iterable[Mapping[str, Any]], run_config: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._contexts = {
            _LAST_NODE - _STEP * number: Context(
                1, _LAST_NODE - _STEP * number, dict(config), RecordDict(), dict(run_config)
            )
            for number, config in enumerate(node_configs)
        }
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def set_run(self, run: Any) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        return None

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return sorted(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._pushed(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _pushed(self, message: Message) -> str:
        name = f"message {next(self._numbers)}"
        message.metadata.__dict__["_message_id"] = name
        message.content = over_the_wire(message.content)
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
            if reply.has_content():  # an error reply has none
                reply.content = over_the_wire(reply.content)
        except Exception as error:  # an app may raise anything: the server hears of it, as in a federation
            reply = error_reply(message, error)
        self._replies[name] = reply
        return name
