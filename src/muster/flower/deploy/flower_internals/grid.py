"""Flower's grid, as a server needs it that has no process of its own for every run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid

from muster.core.errors import EngineError
from muster.flower.deploy.flower_internals.control import unreachable
from muster.flower.deploy.flower_internals.objects import (
    Limited,
    check_inflated,
    object_ids,
    pull_patiently,
    too_large,
)
from muster.flower.deploy.link import Link

#: Seconds for which requests to a SuperLink that does not answer are repeated.
_PATIENCE = 60.0
#: Seconds that every reply has for its objects, however long others have been waited for.
_LEAST_PATIENCE = 1.0
_PASSING = (502, 503, 504)
_PULL_OBJECT = "/pull-object"
#: Bytes around an object when it is handed out.
_ENVELOPE = 4096


class PatientGrid(HttpGrid):
    """Flower's grid with short waits, bounded retries, and a limit on the size of a reply.

    A reply that is too large is not downloaded, one that cannot be read does not end the run: both become error
    replies, like those of a client that failed.
    """

    def __init__(self, link: Link, token: str, max_reply_bytes: int) -> None:
        super().__init__(link.address, False, link.authority, token=token)
        self.max_reply_bytes = max_reply_bytes
        #: Seconds for which one look waits for objects that are announced and not there, all replies together.
        self.patience = _PATIENCE
        self._retry_invoker.max_time = _PATIENCE
        # Stock: a request that is refused sends SIGINT to this process.
        self._retry_invoker.should_giveup = _refused

    def _connect(self) -> None:
        super()._connect()
        assert self._client is not None
        # Called when the head of a response has come, and before anything of its body is read.
        self._client._client.event_hooks = {"response": [self._check_size]}

    def _check_size(self, response: httpx.Response) -> None:
        """Refuse an object that is too large before it is downloaded."""
        if not response.request.url.path.endswith(_PULL_OBJECT) or response.is_error:
            return
        length = response.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > self.max_reply_bytes + _ENVELOPE:
            raise too_large(self.max_reply_bytes, f"an object of {length or 'unknown'} bytes")

    def get_node_ids(self) -> Iterable[int]:
        with self._as_engine_errors():
            return list(super().get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._as_engine_errors():
            return list(super().push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._as_engine_errors():
            client = self._runtime_client
            answer = client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
            end = time.monotonic() + self.patience
            return [
                self._fetched(proto.metadata, tree, max(_LEAST_PATIENCE, end - time.monotonic()))
                for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True)
            ]

    def _fetched(self, metadata: Any, tree: Any, seconds: float) -> Message:
        run_id, client = self.run.run_id, self._runtime_client
        pull = Limited(make_pull_object_fn_protobuf(client.PullObject, self.node, run_id), self.max_reply_bytes)
        try:
            contents = pull_patiently(object_ids(tree, self.max_reply_bytes), pull, max_time=seconds)
            check_inflated(contents, self.max_reply_bytes)
            reply = inflate_object_from_contents(metadata.message_id, contents)
            if not isinstance(reply, Message):
                raise TypeError(f"a {type(reply).__name__} instead of a message")
        except (httpx.HTTPError, RunNotRunningException):
            raise
        except Exception as error:  # whatever a node may have sent: it is this reply's problem alone
            reply = _unusable(metadata, f"{type(error).__name__}: {error}")
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run_id, message_object_id=metadata.message_id)
        )
        reply.metadata.__dict__["_message_id"] = metadata.message_id
        return reply

    @contextmanager
    def _as_engine_errors(self) -> Iterator[None]:
        try:
            yield
        except RunNotRunningException as error:
            raise EngineError(
                f"run {self.run.run_id} was ended from outside", fix="start it again with --resume"
            ) from error
        except httpx.HTTPError as error:
            raise unreachable(self._addr, error) from error


def _refused(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _PASSING


def _unusable(metadata: Any, reason: str) -> Message:
    """An error instead of a reply that cannot be used."""
    facts = Metadata(
        run_id=metadata.run_id,
        message_id=metadata.message_id,
        src_node_id=metadata.src_node_id,
        dst_node_id=metadata.dst_node_id,
        reply_to_message_id=metadata.reply_to_message_id,
        group_id=metadata.group_id,
        created_at=metadata.created_at,
        ttl=metadata.ttl,
        message_type=metadata.message_type,
    )
    return make_message(facts, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, f"unusable reply: {reason}"))
