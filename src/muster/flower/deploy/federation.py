"""A federation on this machine: keys, a SuperLink with TLS and node authentication, nodes as real processes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.core.errors import EngineError
from muster.flower.allowlist import add_client
from muster.flower.deploy import pki
from muster.flower.deploy.link import Link
from muster.flower.deploy.processes import Child, free_port, start, stop_all, wait_until_healthy
from muster.flower.deploy.version import check_version
from muster.flower.signing import IDENTITY_KEY

HOST = "127.0.0.1"
#: How often another port is tried when the free one was taken meanwhile.
_ATTEMPTS = 3


@dataclass
class LocalNode:
    """One site: its key, the id that the SuperLink gave it, and its process."""

    partition: int
    key: pki.NodeKey
    node_id: int
    child: Child


@dataclass
class LocalFederation:
    """Starts everything on entry, and ends everything on exit; `folder` holds keys and logs."""

    folder: Path
    size: int
    #: Only Flower's own nodes and commands, and none of its private interfaces.
    stock: bool = False
    #: Whether the server's side of runs is driven from outside; None: unless everything is stock.
    driven: bool | None = None
    #: More entries of every node's configuration, for example limits.
    node_config: Mapping[str, str | int | float] = field(default_factory=dict)
    #: The client app of warm nodes, where it is not Muster's.
    client_app: str = ""
    #: File for the SuperLink's state; None: in memory, which is three times as quick.
    database: Path | None = None
    nodes: list[LocalNode] = field(default_factory=list, init=False)
    superlink: Child = field(init=False)
    link: Link = field(init=False)

    def __enter__(self) -> LocalFederation:
        if not self.stock:
            check_version()
        self._children: list[Child] = []
        self._numbers = itertools.count()
        self._closing = threading.Event()
        #: Held while a dead node is signed off for: it may be about to be started again.
        self._signing_off = threading.Lock()
        try:
            self._start_superlink()
            for partition in range(self.size):
                self.add_node(partition)
            if not self.stock:
                threading.Thread(target=self._watch, daemon=True).start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_driven(self) -> bool:
        return not self.stock if self.driven is None else self.driven

    @property
    def allow_list(self) -> Path:
        """Which key speaks for which client."""
        return self.folder / "keys" / pki.ALLOW_LIST

    def close(self) -> None:
        """Nodes first, so that they can sign off."""
        self._closing.set()
        stop_all(child for child in self._children if child.name != "superlink")
        stop_all(self._children)

    def add_node(self, partition: int, *, allowed: bool = True) -> LocalNode:
        """Register a new key and start the node that has it; `allowed`: the key may speak for the client."""
        name = f"node{next(self._numbers)}"
        key = pki.make_node_key(self.folder / "keys", name)
        if allowed:
            add_client(self.allow_list, f"partition-id={partition}", key.public)
        node_id = self._register(key, name)
        node = LocalNode(partition, key, node_id, self.start_node(partition, key, name))
        self.nodes.append(node)
        return node

    def restart_node(self, node: LocalNode) -> None:
        """Start a node that has ended again, with its key."""
        with self._signing_off:
            self.sign_off(node)  # while the SuperLink believes that it is there, it would be refused
            node.child = self.start_node(node.partition, node.key, node.child.name)

    def sign_off(self, node: LocalNode) -> None:
        """Tell the SuperLink that a node has died, which otherwise takes a minute to notice."""
        from muster.flower.deploy.flower_internals.control import sign_off

        sign_off(self.link, node.key.private, node.node_id)

    def _watch(self) -> None:
        told: set[int] = set()
        while not self._closing.wait(0.2):
            with self._signing_off:
                dead = [node for node in self.nodes if node.child.pid not in told and not node.child.alive]
                for node in dead:
                    told.add(node.child.pid)
                    self.sign_off(node)

    def start_node(
        self, partition: int, key: pki.NodeKey, name: str, *, link: Link | None = None, **config: str | int
    ) -> Child:
        """The process of a node; `link` and `config` for nodes that misbehave on purpose."""
        link = link or self.link
        own = {"partition-id": partition, "num-partitions": self.size, IDENTITY_KEY: str(key.private)}
        if not self.stock:  # the experiment is of whoever started these nodes
            own["allow-modules"] = "*"
        settings = {**own, **self.node_config, **config}
        command = [
            *(_command("flower-supernode") if self.stock else _muster("node")),
            *("--superlink", link.address, "--root-certificates", str(link.root_certificates)),
            *("--auth-supernode-private-key", str(key.private)),
            *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())),
        ]
        if self.stock:
            command += ["--host", HOST, "--port", str(free_port())]
        elif self.client_app:
            command += ["--app", self.client_app]
        return self._start(name, command)

    def flwr(self, *arguments: str, seconds: float = 120.0) -> str:
        """What Flower's own command line says about this federation."""
        ended = subprocess.run(
            [*_command("flwr"), *arguments],
            env=self.environment("cli"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if ended.returncode != 0:
            raise EngineError(f"`flwr {' '.join(arguments)}` failed:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def environment(self, name: str) -> dict[str, str]:
        """One home for each process: Flower unpacks apps there without a lock."""
        home = self.folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        scripts = sysconfig.get_path("scripts")
        return os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": f"localhost,{HOST}",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
        }

    def restart_superlink(self) -> None:
        """Start a SuperLink that has ended again, at its address: with a `database`, it knows its nodes."""
        self._launch_superlink(int(self.link.address.rpartition(":")[2]))

    def _start_superlink(self) -> None:
        authority = pki.make_authority(self.folder / "keys")
        pki.make_server_certificate(self.folder / "keys", authority, ["localhost", HOST])
        for attempt in range(_ATTEMPTS):
            port = free_port()
            self.link = Link(f"{HOST}:{port}", authority.certificate)
            try:
                self._launch_superlink(port)
                break
            except EngineError:
                if self.superlink.alive or attempt == _ATTEMPTS - 1:
                    raise
        if self.stock:
            self._write_flwr_config()

    def _launch_superlink(self, port: int) -> None:
        keys = self.folder / "keys"
        command = [
            *(*_command("flower-superlink"), "--host", HOST, "--port", str(port), "--enable-supernode-auth"),
            *("--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")),
            *("--ssl-ca-certfile", str(keys / "ca.crt"), "--disable-runtime-dependency-installation"),
            *("--isolation", "process" if self.is_driven else "subprocess"),
            *(() if self.database is None else ("--database", str(self.database))),
        ]
        self.superlink = self._start("superlink", command)
        wait_until_healthy(self.superlink, f"https://{self.link.address}/health", self.link.root_certificates)

    def _register(self, key: pki.NodeKey, name: str) -> int:
        if self.stock:
            answer = self.flwr("supernode", "register", str(key.public), "--name", name, "--format", "json")
            return int(json.loads(answer)["node-id"])
        from muster.flower.deploy.flower_internals.control import register_node

        return register_node(self.link, key.public, name)

    def _write_flwr_config(self) -> None:
        home = Path(self.environment("cli")["FLWR_HOME"])
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "muster"\n\n[superlink.muster]\n'
            f"address = {json.dumps(self.link.address)}\n"
            f"root-certificates = {json.dumps(str(self.link.root_certificates.absolute()))}\n"
        )

    def _start(self, name: str, command: list[str]) -> Child:
        child = start(name, command, self.folder / "logs" / f"{name}.log", self.environment(name))
        self._children.append(child)
        return child


def _command(name: str) -> list[str]:
    """A command of the environment that runs this, whatever PATH says."""
    return [str(Path(sysconfig.get_path("scripts")) / name)]


def _muster(*words: str) -> list[str]:
    return [sys.executable, "-m", "muster.cli.main", *words]
