"""A warm node's loop: what may go wrong with one message does not end it."""

from __future__ import annotations

import time

import httpx
import pytest

pytest.importorskip("flwr")
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.run import Run, RunNotRunningException

from muster.core.errors import EngineError
from muster.flower.deploy import node
from muster.flower.deploy.flower_internals import node as connections
from muster.flower.deploy.flower_internals.node import NodeConnection
from muster.flower.deploy.link import Link

pytestmark = pytest.mark.flower


def message(name: str) -> Message:
    metadata = Metadata(
        run_id=1,
        message_id=name,
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1e12,
        message_type="train",
    )
    return make_message(metadata, content=RecordDict())


CONTEXT = Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})


class Scripted:
    """A connection that gives what it is told to, and then asks the node to end."""

    def __init__(self, *script) -> None:
        self.script, self.sent = list(script), []

    def receive(self):
        if not self.script:
            raise node._Stop(0)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def send(self, reply, seconds):
        self.sent.append(reply)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def serve(connection, app) -> None:
    with pytest.raises(SystemExit) as ended:
        node._serve(connection, app)
    assert ended.value.code == 0


def test_answers_go_back():
    connection = Scripted(None, (message("a"), CONTEXT), None, (message("b"), CONTEXT))
    serve(connection, lambda message, context: Message(RecordDict(), reply_to=message))
    assert [reply.metadata.reply_to_message_id for reply in connection.sent] == ["a", "b"]


def test_an_app_that_raises_gives_an_error_reply():
    connection = Scripted((message("a"), CONTEXT))
    serve(connection, lambda message, context: 1 // 0)
    (reply,) = connection.sent
    assert (reply.error.code, "ZeroDivisionError" in reply.error.reason) == (2, True)


def test_trouble_on_the_way_loses_a_message_and_not_the_node():
    connection = Scripted(httpx.ReadError("reset"), (message("b"), CONTEXT))
    serve(connection, lambda message, context: Message(RecordDict(), reply_to=message))
    assert [reply.metadata.reply_to_message_id for reply in connection.sent] == ["b"]


def test_an_error_of_the_node_itself_ends_it():
    with pytest.raises(KeyError):
        node._serve(Scripted(KeyError("a bug")), lambda message, context: message)


def connection(receive, runs: dict[int, int]) -> NodeConnection:
    """A connection to runs (run → series) of an app without configuration."""

    def get_run(run_id: int) -> Run:
        if run_id not in runs:
            raise RunNotRunningException
        run = Run.create_empty(run_id)
        run.series_id = runs[run_id]
        return run

    callbacks = [7, receive, None, get_run, lambda *_: None, None, None, None]
    return NodeConnection(callbacks, {"partition-id": 3})


def test_a_run_that_has_ended_is_no_trouble():
    def receive():
        raise RunNotRunningException

    assert connection(receive, {}).receive() is None


def test_clients_remember_within_a_series_of_runs(monkeypatch):
    monkeypatch.setattr(connections, "get_fused_config_from_fab", lambda fab, run: {})

    class Bundle:
        content = b""

    node = connection(None, {1: 10, 2: 10, 3: 30})
    node._fab = lambda *_: Bundle
    first, second, third = (node._context(run) for run in (1, 2, 3))
    assert second.state is first.state
    assert third.state is not first.state
    assert third.node_config == {"partition-id": 3}
    with pytest.raises(RunNotRunningException):
        node._context(4)


def test_a_message_that_is_larger_than_the_owner_has_room_for_is_not_downloaded_on():
    """It is lost, and the node goes on."""
    tree = ObjectTree(object_id="message", children=[ObjectTree(object_id=str(number)) for number in range(20)])
    asked: list[str] = []

    def pull(run_id: int, object_id: str) -> bytes:
        asked.append(object_id)
        return b"x" * 1000

    callbacks = (7, lambda: (message("m"), tree), None, None, None, pull, None, None)
    with pytest.raises(ObjectPullError, match="a message may have 3,000 bytes"):
        NodeConnection(callbacks, {}, 3000).receive()
    assert len(asked) < 10
    assert issubclass(ObjectPullError, connections.TROUBLE)


@pytest.mark.parametrize("content", [b"", b"no object", b"Message \x00", b"ArrayChunk 3\x00abc"])
def test_bytes_that_are_no_message_are_lost_and_the_node_goes_on(monkeypatch, content):
    monkeypatch.setattr(NodeConnection, "_context", lambda self, run: None)
    tree = ObjectTree(object_id="message")
    callbacks = (7, lambda: (message("m"), tree), None, None, None, lambda *_: content, None, lambda *_: None)
    with pytest.raises(connections.TROUBLE):
        NodeConnection(callbacks, {}).receive()


@pytest.mark.parametrize(("given", "found"), [({}, ""), ({"allow-modules": "mylosses"}, "mylosses")])
def test_a_node_allows_no_modules_unless_its_owner_does(monkeypatch, tmp_path, given, found):
    seen = {}

    def connect(link, private_key, config):
        seen.update(config)
        raise SystemExit(1)

    monkeypatch.setattr("muster.flower.deploy.flower_internals.node.connect_node", connect)
    with pytest.raises(EngineError, match="did not admit this node"):
        node.run_node(Link("localhost:1", tmp_path / "ca.crt"), tmp_path / "key", ClientApp(), given)
    assert seen["allow-modules"] == found
