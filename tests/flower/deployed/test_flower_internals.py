"""Flower's private interfaces are still those that the package `flower_internals` was written for.

When this fails after an update of flwr: look at what changed, adapt the package, run `make flower`, and
then raise `version.SUPPORTED`. Until then users of the new version get a clear message, and stock nodes.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import time
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.retry import RetryInvoker
from flwr.superlink.grid import http_grid
from flwr.supernode.fleet_http_connection import http_request_response

from muster.core.errors import EngineError
from muster.flower.deploy import version
from muster.flower.deploy.flower_internals import control, driving, node, objects
from muster.flower.deploy.flower_internals import grid as grids
from muster.flower.deploy.flower_internals.grid import PatientGrid
from muster.flower.deploy.link import Link
from muster.flower.deploy.pki import make_authority
from muster.flower.signing import digest

pytestmark = pytest.mark.flower

#: Function → the parameters that it has.
SIGNATURES = {
    "http_request_response": "server_address insecure root_certificates authentication_keys max_retries "
    "max_wait_time",
    "pull_objects": "object_ids pull_object_fn max_concurrent_pulls max_time max_tries_per_object initial_backoff "
    "backoff_cap",
    "push_objects": "objects push_object_fn object_ids_to_push keep_objects max_concurrent_pushes",
    "inflate_object_from_contents": "object_id object_contents keep_object_contents objects",
    "iterate_object_tree": "tree",
    "get_object_tree": "obj",
    "get_object_body": "object_content cls",
    "get_object_children_ids_from_object_content": "object_content",
    "get_object_type_from_object_content": "object_content",
    "get_all_nested_objects": "obj",
    "make_pull_object_fn_protobuf": "pull_object_protobuf node run_id",
    "make_message": "metadata content error",
    "make_task_heartbeat_fn_http": "client",
    "HeartbeatSender": "heartbeat_fn",
    "NodeAuthHttpInterceptor": "private_key public_key",
    "RuntimeVersionHttpInterceptor": "component_name",
    "HttpGrid": "runtime_api_address insecure root_certificates token",
    "build_fab_from_disk": "app",
    "get_fused_config_from_fab": "fab_file run",
    "Fab": "hash_str content verifications",
    "public_key_to_bytes": "public_key",
}
#: Message of the protocol → fields that are used.
FIELDS = {
    "RegisterNodeRequest": "public_key name",
    "StartRunRequest": "fab override_config series_id",
    "StopRunRequest": "run_id",
    "DeactivateNodeRequest": "node_id",
    "AcquireTaskRequest": "supported_task_types",
    "PullAppMessagesRequest": "message_ids",
    "PushTaskOutputRequest": "sub_status details",
    "ConfirmMessageReceivedRequest": "node run_id message_object_id",
}
#: Class → methods and properties that are used.
MEMBERS = {
    "ControlHttpClient": "from_server_address RegisterNode StartRun StopRun close",
    "RuntimeHttpClient": "from_server_address AcquireTask PullMessages PullObject PullTaskInput PushTaskOutput "
    "ConfirmMessageReceived close",
    "FleetHttpClient": "from_server_address DeactivateNode __enter__",
    "HttpGrid": "_runtime_client get_node_ids push_messages pull_messages set_run run close",
    "FlowerError": "from_json",
    "ErrorCode": "CLIENT_APP_RAISED_EXCEPTION MESSAGE_UNAVAILABLE",
    "TaskIdentity": "_task_id _run_id _node_id",
}


def used(name: str) -> Any:
    """What a module of the package has imported under a name."""
    return next(
        getattr(module, name) for module in (control, objects, grids, driving, node) if hasattr(module, name)
    )


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_take_what_we_give_them(name):
    found = inspect.signature(used(name)).parameters
    assert list(found) == SIGNATURES[name].split()


@pytest.mark.parametrize("name", FIELDS)
def test_messages_of_the_protocol_have_the_fields(name):
    found = {field.name for field in used(name).DESCRIPTOR.fields}
    assert set(FIELDS[name].split()) <= found


@pytest.mark.parametrize("name", MEMBERS)
def test_classes_have_the_members(name):
    assert [member for member in MEMBERS[name].split() if not hasattr(used(name), member)] == []


def test_the_grid_can_be_made_patient(tmp_path):
    (tmp_path / "ca.crt").write_bytes(b"")
    grid = PatientGrid(Link("localhost:1", tmp_path / "ca.crt"), "token", 1000)
    assert isinstance(grid._retry_invoker, RetryInvoker)
    assert {"max_time", "max_tries", "should_giveup"} <= set(vars(grid._retry_invoker))
    assert grid._addr == "localhost:1"
    assert grid.node.node_id == 1


class Body(httpx.SyncByteStream):
    """A body that knows how much of it was read."""

    def __init__(self, content: bytes) -> None:
        self.content, self.read = content, 0

    def __iter__(self):
        for start in range(0, len(self.content), 1000):
            piece = self.content[start : start + 1000]
            self.read += len(piece)
            yield piece


@pytest.fixture
def pulled(tmp_path):
    """Asks a SuperLink for an object of so many bytes: what comes, and how much of it was downloaded."""

    def pull(size: int, limit: int, *, stated: bool = True):
        (tmp_path / "ca.crt").write_text(make_authority(tmp_path / str(size)).certificate.read_text())
        grid = PatientGrid(Link("localhost:1", tmp_path / "ca.crt"), "token", limit)
        answer = PullObjectResponse(object_found=True, object_available=True, object_content=b"x" * size)
        body = Body(answer.SerializeToString())
        headers = {"content-length": str(len(body.content))} if stated else {}
        client = grid._runtime_client
        client._client._mounts = {}
        client._client._transport = httpx.MockTransport(
            lambda _: httpx.Response(200, headers=headers, stream=body)
        )
        found: bytes | str
        try:
            found = client.PullObject(PullObjectRequest()).object_content
        except ObjectPullError as error:
            found = str(error)
        grid.close()
        return found, body.read

    return pull


def test_an_object_is_refused_before_it_is_downloaded(pulled):
    assert pulled(50_000, limit=50_000)[0] == b"x" * 50_000
    said, read = pulled(1_000_000, limit=50_000)
    assert "an object of 1000008 bytes, where a message may have 50,000" in said
    assert read == 0
    said, read = pulled(10, limit=50_000, stated=False)
    assert "an object of unknown bytes" in said
    assert read == 0


def test_a_message_of_countless_objects_is_refused_before_any_is_asked_for():
    leaves = [ObjectTree(object_id=str(number)) for number in range(200)]
    with pytest.raises(ObjectPullError, match="more than 100 objects"):
        objects.object_ids(ObjectTree(object_id="message", children=leaves), 10)
    assert len(objects.object_ids(ObjectTree(object_id="message", children=leaves), 2**24)) == 201


def test_objects_that_weigh_too_much_together_are_not_pulled_on():
    asked: list[str] = []

    def pull(object_id: str) -> bytes:
        asked.append(object_id)
        return b"x" * 40

    limited = objects.Limited(pull, 100)
    for number in range(3):
        limited(str(number))
    with pytest.raises(ObjectPullError, match="120 bytes and more"):
        limited("3")
    assert asked == ["0", "1", "2"]


def in_pieces(vector: np.ndarray) -> tuple[str, dict[str, bytes]]:
    content = RecordDict({"arrays": ArrayRecord({"model": Array(vector)})})
    return content.object_id, {id: part.deflate() for id, part in get_all_nested_objects(content).items()}


def test_a_piece_that_is_listed_many_times_is_weighed_as_often():
    """A vector of zeros is downloaded as one piece, and is as large as any other when it is put together."""
    zeros = np.zeros(10_000_000, dtype=np.float32)
    _, contents = in_pieces(zeros)
    assert sum(map(len, contents.values())) < 15_000_000
    objects.check_inflated(contents, zeros.nbytes + 10_000)
    with pytest.raises(ObjectPullError, match=r"vectors of 40,\d+,\d+ bytes, where a message may have 20,000,000"):
        objects.check_inflated(contents, 20_000_000)


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """A grid for which a reply is announced, whose objects come as `pull` says."""
    (tmp_path / "ca.crt").write_bytes(b"")

    def make(pull, *trees: ObjectTree):
        grid = PatientGrid(Link("localhost:1", tmp_path / "ca.crt"), "token", 10**6)
        answer = SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=proto_metadata(tree.object_id)) for tree in trees],
            message_object_trees=trees,
        )
        client = SimpleNamespace(
            PullMessages=lambda _: answer, PullObject=None, ConfirmMessageReceived=lambda _: None
        )
        monkeypatch.setattr(PatientGrid, "_runtime_client", client)
        monkeypatch.setattr(PatientGrid, "run", SimpleNamespace(run_id=1))
        monkeypatch.setattr(grids, "make_pull_object_fn_protobuf", lambda *_: pull)
        return grid

    return make


def proto_metadata(name: str) -> ProtoMetadata:
    return ProtoMetadata(message_id=name, reply_to_message_id="x", message_type="train", ttl=60.0)


def test_objects_that_never_come_are_not_waited_for_until_the_deadline(answering, monkeypatch):
    """Several such replies wait together, not one after the other."""
    monkeypatch.setattr(grids, "_LEAST_PATIENCE", 0.05)

    def pull(object_id: str) -> bytes:
        raise ObjectUnavailableError(object_id)

    grid = answering(pull, *(ObjectTree(object_id=name * 64) for name in "abc"))
    grid.patience = 0.3
    start = time.monotonic()
    replies = list(grid.pull_messages(["m"]))
    assert time.monotonic() - start < 5
    assert ["timeout" in reply.error.reason for reply in replies] == [True] * 3


def test_a_digest_survives_the_division_of_vectors_into_pieces():
    """What a node signs is what it put together again from pieces of 5 MB."""
    vector = np.arange(3_000_000, dtype=np.float32)
    content = RecordDict({"arrays": ArrayRecord({"model": Array(vector)}), "muster": ConfigRecord({"a": 1.5})})
    before = digest(content)
    contents = {id: part.deflate() for id, part in get_all_nested_objects(content).items()}
    assert len(contents) > 5  # three pieces
    again = inflate_object_from_contents(content.object_id, contents)
    assert isinstance(again, RecordDict)
    assert digest(again) == before == digest(content)


def test_the_callbacks_of_a_node_come_in_the_order_that_we_unpack():
    source = inspect.getsource(http_request_response)
    handed_out = source[source.index("yield (") : source.index("except Exception")]
    names = [
        "node.node_id",
        "receive",
        "send",
        "get_run",
        "get_fab",
        "pull_object",
        "push_object",
        "confirm_message_received",
    ]
    assert [line.strip(" ,") for line in handed_out.splitlines()[1:9]] == names


def test_metadata_can_be_made_for_an_error_in_the_place_of_a_reply():
    assert "_message_id" in vars(
        Metadata(
            run_id=1,
            message_id="",
            src_node_id=2,
            dst_node_id=1,
            reply_to_message_id="x",
            group_id="",
            created_at=0.0,
            ttl=1.0,
            message_type="train",
        )
    )


def test_stock_pulling_is_what_we_replace():
    """Our own `pull_messages` does what Flower's does, apart from waits and checks: look again if it changes."""
    source = inspect.getsource(http_grid.HttpGrid.pull_messages)
    for step in ("PullMessages", "pull_objects", "ConfirmMessageReceived", "inflate_object_from_contents"):
        assert step in source


def test_other_versions_are_refused_with_advice(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.57.0")
    with pytest.raises(EngineError, match=r"flwr 1\.57\.0 is installed") as caught:
        version.check_version()
    assert "flower-supernode" in caught.value.fix
    assert "--stock" in caught.value.fix


def test_a_missing_flower_is_said(monkeypatch):
    def missing(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(EngineError, match="not installed"):
        version.check_version()
