"""Nodes that should not be there, and nodes that lie: they get nowhere, and the server goes on."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from muster.core.errors import EngineError
from muster.flower.allowlist import add_client
from muster.flower.deploy.driver import Task, run_on_link
from muster.flower.deploy.link import Link
from muster.flower.deploy.pki import make_authority, make_node_key
from muster.server.loop import Observer

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

LIAR = 4


#: What the answers of a lying node are like → why they are refused.
LIES = {
    "nan": "non-finite values",
    "shape": "float32 of shape",
    "size": "bytes",
    "pickle": "cannot be decoded|turns out to be|bytes",
    "client": "as client 99",
    "garbage": "unusable reply",
}


class Liar(Observer):
    """Has a node tell another lie in every round."""

    def __init__(self, order: Path) -> None:
        self.order, self.lies = order, iter(LIES)

    def started(self, server, rounds, done) -> None:
        self.order.write_text(next(self.lies))

    def round_ended(self, record, ledger) -> None:
        self.order.write_text(next(self.lies, ""))


def test_a_node_that_lies_is_refused_and_the_others_are_used(
    federation, task, mischief, locally_with_the_same_faults
):
    experiment, order = task(f"rounds={len(LIES)}"), mischief / f"lie-{LIAR}"
    try:
        result = run_on_link(experiment, federation.link, [Liar(order)])
    finally:
        order.unlink()
    for record, reason in zip(result.records, LIES.values(), strict=True):
        (training,) = record.trainings
        refused = training.failed | training.rejected
        assert list(refused) == [LIAR]
        assert re.search(reason, refused[LIAR]), refused[LIAR]
        assert training.clients == [0, 1, 2, 3, 5]
    assert not (mischief / "unpickled").exists()
    local = locally_with_the_same_faults(experiment, result.records)
    assert np.array_equal(result.parameters, local.parameters)


def test_a_node_without_a_registered_key_is_turned_away(federation, task, tmp_path):
    child = federation.start_node(0, make_node_key(tmp_path, "stranger"), "stranger")
    assert child.wait(120) == EngineError.exit_code
    assert "did not admit this node" in child.log.read_text()
    result = run_on_link(task("rounds=1"), federation.link)
    assert result.records[0].trainings[0].clients == [0, 1, 2, 3, 4, 5]


def test_a_node_does_not_talk_to_a_superlink_of_another_authority(federation, tmp_path):
    other = make_authority(tmp_path)
    link = Link(federation.link.address, other.certificate)
    child = federation.start_node(0, federation.nodes[0].key, "deceived", link=link)
    assert child.wait(120) == EngineError.exit_code
    assert "CERTIFICATE_VERIFY_FAILED" in child.log.read_text()


class Intrusion(Observer):
    """Starts another node after the first round: its key is registered, but it is not who it says."""

    def __init__(self, federation, partition: int, until) -> None:
        self.federation, self.partition, self.until = federation, partition, until
        self.node: Any = None

    def round_ended(self, record, ledger) -> None:
        if self.node is None:
            self.node = self.federation.add_node(self.partition)
            self.until(lambda: "is ready" in self.node.child.log.read_text())

    def end(self) -> None:
        self.federation.nodes.remove(self.node)
        self.node.child.kill()
        self.federation.sign_off(self.node)


@pytest.mark.parametrize(("partition", "why"), [(77, "partition-id is 77"), (3, "'partition-id=3', which node")])
def test_a_node_that_claims_to_be_somebody_else_takes_no_part(federation, task, until, partition, why):
    """An unknown client, or one that is there already."""
    intrusion = Intrusion(federation, partition, until)
    try:
        result = run_on_link(task("rounds=4"), federation.link, [intrusion])
    finally:
        intrusion.end()
    assert [record.trainings[0].clients for record in result.records] == [[0, 1, 2, 3, 4, 5]] * 4
    told = [event for record in result.records for event in record.events]
    assert any(str(intrusion.node.node_id) in event and why in event for event in told), told


def test_a_registered_key_does_not_get_a_free_clients_place(federation, task, until, start_again, tmp_path):
    """Client 3 is away, and a node that the SuperLink lets in says it is client 3."""
    away, allowed = federation.nodes[3], tmp_path / "allowed-clients"
    allowed.write_text(federation.allow_list.read_text())
    away.child.signal(signal.SIGTERM)
    assert away.child.wait(60) == 0
    intruder = federation.add_node(3, allowed=False)
    try:
        until(lambda: "is ready" in intruder.child.log.read_text())

        def run_it(name: str, *settings: str, **options: Any) -> Any:
            return run_on_link(task("rounds=1", *settings, out=name), federation.link, **options)

        believed = run_it("believed")  # without a list its word is enough, and that is said
        with pytest.raises(EngineError) as refused:
            run_it("refused", "flower.wait=15", allow_list=allowed)
        # The line of another key for the same client: the key was changed.
        add_client(allowed, "partition-id=3", intruder.key.public)
        changed = run_it("changed", allow_list=allowed)
    finally:
        federation.nodes.remove(intruder)
        intruder.child.kill()
        federation.sign_off(intruder)
        start_again(federation, away)
    for result in (believed, changed):
        assert result.records[0].trainings[0].clients == [0, 1, 2, 3, 4, 5]
    warned = [any("no allow-list" in event for event in r.records[0].events) for r in (believed, changed)]
    assert warned == [True, False]
    told = str(refused.value)
    assert "5 of 6 nodes are ready" in told
    assert f"node {intruder.node_id} was not admitted: it claims to be 'partition-id=3', but its signature" in told


def test_an_owner_who_wants_noise_on_updates_gets_it_or_the_node_does_not_train(
    federation, task, start_again, monkeypatch
):
    """A real node, started with the owner's limit; the others have none."""
    careful = federation.nodes[2]

    def start_with(**limits: float) -> None:
        monkeypatch.setattr(federation, "node_config", limits)
        careful.child.signal(signal.SIGTERM)
        assert careful.child.wait(60) is not None
        start_again(federation, careful)

    noise = 'filters=[{method="update-noise", norm=1.0, epsilon=1.0}]'
    start_with(**{"max-epsilon": 1.0})
    try:
        exact = run_on_link(task("rounds=1"), federation.link)
        noisy = run_on_link(task("rounds=1", noise, out="noisy"), federation.link)
    finally:
        start_with()
    (training,) = exact.records[0].trainings
    assert training.clients == [0, 1, 3, 4, 5]
    assert "wants noise on model updates" in training.failed[2]
    assert noisy.records[0].trainings[0].clients == [0, 1, 2, 3, 4, 5]
    assert noisy.ledger.privacy.total() == (1.0, 1e-5)


@dataclass(frozen=True)
class Trojan(Task):
    """A task whose app does on a node what it likes, if a node runs it."""

    trace: Path = Path()

    def write_app(self, folder: Path) -> Path:
        app = super().write_app(folder)
        (client,) = app.glob("*/client_app.py")
        client.write_text(f"open({str(self.trace)!r}, 'w').close()\n{client.read_text()}")
        return app


def test_code_that_a_server_sends_is_not_run(federation, task, tmp_path):
    honest = task("rounds=1")
    sent = Trojan(honest.config, honest.out, honest.settings, trace=tmp_path / "trace")
    result = run_on_link(sent, federation.link)
    assert result.complete
    assert not sent.trace.exists()


@pytest.mark.parametrize("name", ["nginx.conf", "nginx-compose.conf"])
def test_the_proxy_lets_an_honest_piece_through_and_little_more(name):
    text = (Path(__file__).parents[3] / "examples" / "deployment" / name).read_text()
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE < int(megabytes) * 2**20 < 2 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    assert re.findall(r"location (\S+) ", text) == ["/v1/fleet/", "/"]
    assert text[text.index("location / ") :].split()[3:5] == ["return", "404;"]
