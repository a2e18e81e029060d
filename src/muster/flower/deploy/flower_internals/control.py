"""What a SuperLink is told from outside: which nodes there are, and that a run has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import RegisterNodeRequest, StopRunRequest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from muster.core.errors import EngineError
from muster.flower.deploy.link import Link
from muster.flower.signing import node_key


@contextmanager
def control(link: Link) -> Iterator[ControlHttpClient]:
    """A connection to the part of a SuperLink that manages nodes and runs."""
    client = ControlHttpClient.from_server_address(
        link.address, False, link.authority, [RuntimeVersionHttpInterceptor("flwr CLI")]
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise unreachable(link.address, error) from error
    finally:
        client.close()


def register_node(link: Link, public_key: Path, name: str) -> int:
    """Let the SuperLink accept the owner of a key; the node's id."""
    key = load_ssh_public_key(public_key.read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    with control(link) as superlink:
        answer = superlink.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))
    return int(answer.node_id)


def stop_run(link: Link, run_id: int) -> None:
    """End a run that is no longer driven; no matter if it has already ended."""
    with suppress(EngineError), control(link) as superlink:
        superlink.StopRun(StopRunRequest(run_id=run_id))


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


def unreachable(address: str, error: httpx.HTTPError) -> EngineError:
    """What is said when a SuperLink does not answer, or refuses."""
    told = FlowerError.from_json(error.response.text) if isinstance(error, httpx.HTTPStatusError) else None
    return EngineError(
        f"the SuperLink at {address} cannot be used: {told or error or type(error).__name__}",
        fix="check that it runs, its address and the --root-certificates; then start again with --resume",
    )
