"""Everything that touches interfaces of Flower which are not part of its documented API: for flwr 1.41 only.

Flower starts a process for every message, and a server process of its own for every run. Warm nodes and a run that
is driven from this process need more than its public interfaces offer; what they need is here and nowhere else.
`check_version` refuses other versions; `tests/flower/deployed/test_flower_internals.py` checks every name below
and reports what a new version has changed. Stock nodes and `flwr run` need nothing from this module.
"""

# ruff: noqa: E402 (the version is checked before importing names that another version may not have)
from __future__ import annotations

from muster.flower.deploy.version import check_version

check_version()

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Array, Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.common.serde import (
    context_from_proto,
    fab_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
    run_from_proto,
    user_config_to_proto,
)
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_tree,
    get_object_type_from_object_content,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from muster.core.errors import EngineError
from muster.flower.deploy.link import Link
from muster.flower.limits import Limits
from muster.flower.signing import node_key

#: A message can be seen before its objects are uploaded. Flower waits 1 to 10 s before it asks for them again,
#: which is longer than all the rest of an exchange.
_pull_objects = partial(pull_objects, initial_backoff=0.02, backoff_cap=0.5)
#: Seconds for which requests to a SuperLink that does not answer are repeated.
_PATIENCE = 60.0
#: Seconds that every reply has for its objects, however long others have been waited for.
_LEAST_PATIENCE = 1.0
_PASSING = (502, 503, 504)
_PULL_OBJECT = "/pull-object"
#: Bytes around an object when it is handed out; objects of an honest answer beside the pieces of its vectors; the
#: least bytes of such a piece (Flower's own have 5 MB).
_ENVELOPE, _MOST_OBJECTS, _LEAST_CHUNK = 4096, 100, 2**16


# --- control: nodes and runs ---------------------------------------------------------------------------------


@contextmanager
def _control(link: Link) -> Iterator[ControlHttpClient]:
    client = ControlHttpClient.from_server_address(
        link.address, False, link.authority, [RuntimeVersionHttpInterceptor("flwr CLI")]
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise _unreachable(link.address, error) from error
    finally:
        client.close()


def register_node(link: Link, public_key: Path, name: str) -> int:
    """Let the SuperLink accept the owner of a key; the node's id."""
    key = load_ssh_public_key(public_key.read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    with _control(link) as control:
        answer = control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))
    return int(answer.node_id)


def stop_run(link: Link, run_id: int) -> None:
    """End a run that is no longer driven; no matter if it has already ended."""
    with suppress(EngineError), _control(link) as control:
        control.StopRun(StopRunRequest(run_id=run_id))


def sign_off(link: Link, private_key: Path, node_id: int) -> None:
    """Sign off a node that died, which otherwise takes a minute to notice."""
    key = node_key(private_key)
    signing = NodeAuthHttpInterceptor(key, key.public_key())
    with (
        FleetHttpClient.from_server_address(
            link.address, False, link.authority, [RuntimeVersionHttpInterceptor("SuperNode"), signing]
        ) as client,
        suppress(httpx.HTTPError),
    ):  # it may have done so itself
        client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))


# --- the server's side of a run ------------------------------------------------------------------------------


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
            raise _too_large(self.max_reply_bytes, f"an object of {length or 'unknown'} bytes")

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
        pull = _Limited(make_pull_object_fn_protobuf(client.PullObject, self.node, run_id), self.max_reply_bytes)
        try:
            contents = _pull_objects(_object_ids(tree, self.max_reply_bytes), pull, max_time=seconds)
            _check_inflated(contents, self.max_reply_bytes)
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
            raise _unreachable(self._addr, error) from error


def _object_ids(tree: Any, max_bytes: int) -> list[str]:
    """The objects of a message, if they are not more than such a message can have."""
    most = _MOST_OBJECTS + max_bytes // _LEAST_CHUNK
    ids = [node.object_id for node in islice(iterate_object_tree(tree), most + 1)]
    if len(ids) > most:
        raise _too_large(max_bytes, f"more than {most} objects")
    return ids


def _check_inflated(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse vectors that are larger than what was downloaded for them: a vector may list a piece many times."""
    weight = 0
    for content in contents.values():
        if get_object_type_from_object_content(content) == Array.__name__:
            pieces = get_object_children_ids_from_object_content(content)
            listed = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            weight += sum(len(contents[pieces[position]]) for position in listed)
    if weight > limit:
        raise _too_large(limit, f"vectors of {weight:,} bytes")


def _too_large(limit: int, found: str) -> ObjectPullError:
    return ObjectPullError("of an answer", f"{found}, where a message may have {limit:,} bytes")


class _Limited:
    """Pulls objects until together they are too large. Two are pulled at a time, so up to two may be in excess."""

    def __init__(self, pull: Callable[[str], bytes], limit: int) -> None:
        self._pull, self._limit, self._weight = pull, limit, 0

    def __call__(self, object_id: str) -> bytes:
        if self._weight > self._limit:
            raise _too_large(self._limit, f"{self._weight:,} bytes and more")
        content = self._pull(object_id)
        self._weight += len(content)
        return content


@dataclass(frozen=True)
class DrivenRun:
    """A run whose server's side is this process."""

    grid: PatientGrid
    run_id: int
    #: Nodes keep what clients remember for all runs of a series.
    series_id: int
    context: Context


@contextmanager
def drive_run(
    link: Link,
    app: Path,
    config: Mapping[str, str | int | float | bool],
    *,
    series_id: int | None = None,
    max_reply_bytes: int = 2**30,
    seconds: float = 30.0,
) -> Iterator[DrivenRun]:
    """Start a run of a Flower app on a SuperLink with `--isolation process`, and take its server's side.

    It is a run like any other for `flwr ls` and `flwr stop`. One at a time in a process: the identity of the task
    is global in Flower.
    """
    run_id = _start_run(link, fab := build_fab_from_disk(app), config, series_id)
    try:
        grid = PatientGrid(link, _acquire(link, run_id, seconds), max_reply_bytes)
    except BaseException:
        stop_run(link, run_id)
        raise
    client = grid._runtime_client
    beat = HeartbeatSender(make_task_heartbeat_fn_http(client))  # without it the run counts as dead after 60 s
    beat.start()
    status, details = "failed", ""
    try:
        task = client.PullTaskInput(PullTaskInputRequest())
        run, context = run_from_proto(task.run), context_from_proto(task.context)
        context.run_config = get_fused_config_from_fab(fab, run)
        grid.set_run(run)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run_id, context.node_id
        yield DrivenRun(grid, run_id, context.series_id, context)
        status = "completed"
    except BaseException as error:
        details = repr(error)[:500]
        raise
    finally:
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError, RunNotRunningException):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        beat.stop()
        grid.close()


def _start_run(link: Link, fab: bytes, config: Mapping[str, Any], series_id: int | None) -> int:
    bundle = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
    override = user_config_to_proto(dict(config))
    with _control(link) as control:
        answer = control.StartRun(StartRunRequest(fab=bundle, override_config=override, series_id=series_id))
    if not answer.run_id:
        raise EngineError(f"the SuperLink at {link.address} did not start the run", fix="look at its log")
    return int(answer.run_id)


def _acquire(link: Link, run_id: int, seconds: float) -> str:
    """The token for a run's server task. Tasks come oldest first, so abandoned ones before are taken and left."""
    executor = RuntimeHttpClient.from_server_address(
        link.address, False, link.authority, [RuntimeVersionHttpInterceptor("SuperExec")]
    )
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            answer = executor.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
            if answer.token and answer.task.run_id == run_id:
                return str(answer.token)
            if not answer.token:
                time.sleep(0.05)
    except httpx.HTTPError as error:
        raise _unreachable(link.address, error) from error
    finally:
        executor.close()
    raise EngineError(
        f"the SuperLink at {link.address} did not hand out run {run_id}",
        expected="a SuperLink that was started with --isolation process and has no SuperExec",
    )


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


def _unreachable(address: str, error: httpx.HTTPError) -> EngineError:
    told = FlowerError.from_json(error.response.text) if isinstance(error, httpx.HTTPStatusError) else None
    return EngineError(
        f"the SuperLink at {address} cannot be used: {told or error or type(error).__name__}",
        fix="check that it runs, its address and the --root-certificates; then start again with --resume",
    )


# --- a node --------------------------------------------------------------------------------------------------

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
            contents = _pull_objects(
                _object_ids(tree, self._limit), _Limited(partial(self._pull, run_id), self._limit)
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
