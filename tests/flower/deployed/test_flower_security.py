"""Nodes that should not be there, and nodes that lie: they get nowhere, and the server goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.core.errors import EngineError
from muster.flower.deploy.driver import run_on_link
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
    "pickle": "cannot be decoded|bytes",
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
