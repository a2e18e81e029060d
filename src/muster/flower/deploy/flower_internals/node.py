"""A node: taking messages, sending replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    push_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from muster.flower.deploy.flower_internals.objects import Limited, object_ids, pull_patiently
from muster.flower.deploy.link import Link
from muster.flower.limits import Limits
from muster.flower.signing import node_key

#: What may go wrong with one message, after which the next one is tried.
TROUBLE = (httpx.HTTPError, ObjectPullError, ObjectPushError)


class NodeConnection:
    """What a node does with its SuperLink: take messages, send replies."""

    def __init__(self, callbacks: Sequence[Any], node_config: Mapping[str, Any], max_bytes: int = 2**33) -> None:
        self.node_id: int = callbacks[0]
        self._receive, self._send, self._run, self._fab = callbacks[1:5]
        self._pull, self._push, self._confirm = callbacks[5:]
        self._node_config = dict(node_config)
        #: What one message may weigh.
        self._limit = max_bytes
        self._contexts: dict[int, Context] = {}

    def receive(self) -> tuple[Message, Context] | None:
        """The next message for this node, complete, with its run's context; None when there is none."""
        try:
            got = self._receive()
            if got is None:
                return None
            run_id, tree = got[0].metadata.run_id, got[1]
            contents = pull_patiently(
                object_ids(tree, self._limit), Limited(partial(self._pull, run_id), self._limit)
            )
            self._confirm(run_id, tree.object_id)
            context = self._context(run_id)
            message = inflate_object_from_contents(tree.object_id, contents)
        except RunNotRunningException:  # it ended meanwhile
            return None
        except TROUBLE:
            raise
        except Exception as error:  # whatever was sent: it is lost, and the node goes on
            raise ObjectPullError("of a message", f"it is none ({type(error).__name__}: {error})") from error
        if not isinstance(message, Message):
            raise ObjectPullError("of a message", f"it is a {type(message).__name__}")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message, context

    def _context(self, run_id: int) -> Context:
        """The run's configuration, and what this node remembers for the runs of its series."""
        if run_id not in self._contexts:
            run = self._run(run_id)
            # The app's files are only read for their configuration: no code from the SuperLink is run.
            config = get_fused_config_from_fab(self._fab(run.fab_hash, run_id).content, run)
            earlier = [context for context in self._contexts.values() if context.series_id == run.series_id]
            self._contexts = {context.run_id: context for context in earlier[-1:]}
            self._contexts[run_id] = Context(
                run_id=run_id,
                node_id=self.node_id,
                node_config=self._node_config,
                state=earlier[-1].state if earlier else RecordDict(),
                run_config=config,
                series_id=run.series_id,
            )
        return self._contexts[run_id]

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply that took this many seconds to make."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run_id = reply.metadata.run_id
        with suppress(RunNotRunningException), no_object_id_recompute():
            wanted, session = self._send(reply, get_object_tree(reply), seconds)
            push_objects(
                get_all_nested_objects(reply),
                partial(self._push, run_id, session),
                object_ids_to_push=set(wanted),
            )


@contextmanager
def connect_node(link: Link, private_key: Path, node_config: Mapping[str, Any]) -> Iterator[NodeConnection]:
    """Sign on as a node, keep up its heartbeat, and sign off at the end.

    Flower ends the process when the SuperLink refuses the node. Errors inside the `with` must be handled there:
    Flower would swallow them.
    """
    key = node_key(private_key)
    # A message is not larger than all vectors that the owner has room for.
    max_bytes = Limits.of(node_config).max_memory * 2**20
    with http_request_response(link.address, False, link.authority, (key, key.public_key())) as callbacks:
        yield NodeConnection(callbacks, node_config, max_bytes)


def error_reply(message: Message, error: Exception) -> Message:
    """What the server gets when the client app raised."""
    reason = f"{type(error).__name__}: {error}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@contextmanager
def as_a_task() -> Iterator[None]:
    """Within, messages can be made in this process, as in one that Flower has started for a run."""
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def over_the_wire(content: RecordDict) -> RecordDict:
    """Records as they arrive elsewhere."""
    return recorddict_from_proto(recorddict_to_proto(content))
