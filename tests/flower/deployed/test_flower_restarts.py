"""The SuperLink, a node or the server ends in the middle of its work: the run completes, nothing counts twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.experiment import run
from muster.flower.deploy.driver import Task, run_on_link
from muster.flower.deploy.federation import LocalFederation
from muster.server.result import Result

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

NODES = 2
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def durable(tmp_path_factory, mischief) -> Iterator[LocalFederation]:
    """Two nodes and a SuperLink that keeps its state on disk."""
    folder = tmp_path_factory.mktemp("durable")
    before = dict(os.environ)
    os.environ["MUSTER_TEST_MISCHIEF"] = str(mischief)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), before.get("PYTHONPATH", "")])
    try:
        state = folder / "superlink.db"
        with LocalFederation(folder, NODES, client_app="misbehaving:app", database=state) as running:
            yield running
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def small(task):
    """Three rounds with everybody; answers have to be signed."""

    def make(resume: bool = False) -> Task:
        settings = (f"partition.clients={NODES}", f"selection.clients_per_round={NODES}", "rounds=3")
        return task(*settings, "flower.wait=60", resume=resume)

    return make


@pytest.fixture
def running(durable, small) -> Iterator[Callable[[], Future[Result]]]:
    """Starts the server beside the test, where it is not the server that ends; only signed answers count."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda: thread.submit(run_on_link, small(), durable.link, allow_list=durable.allow_list)


def check_books(result: Result) -> None:
    """Every round once, nobody twice in it, and the books agree with the records."""
    assert [record.round for record in result.records] == [1, 2, 3]
    for record in result.records:
        (training,) = record.trainings
        assert len(set(training.clients)) == len(training.clients)
        assert not set(training.clients) & set(training.failed)
    counted = Counter(client for record in result.records for client in record.trainings[0].clients)
    assert [counted[client] for client in range(NODES)] == result.history.trainings.tolist()


@pytest.fixture
def received(monkeypatch) -> list[str]:
    """The groups of the replies that the server has in hand, in the order in which they came."""
    from muster.flower.deploy.flower_internals.grid import PatientGrid

    groups: list[str] = []
    pull = PatientGrid.pull_messages

    def noting(grid: PatientGrid, message_ids):
        replies = list(pull(grid, message_ids))
        groups.extend(reply.metadata.group_id for reply in replies)
        return replies

    monkeypatch.setattr(PatientGrid, "pull_messages", noting)
    return groups


def test_a_superlink_that_restarts_in_the_middle_of_a_run(  # noqa: PLR0917 (fixtures)
    durable, small, running, hold_client, until, received
):
    """One answer has come, the other client is at work: its answer reaches the server through the new process.

    An answer that the SuperLink is handing over in the very moment in which it dies is lost, as it hands over only
    once; so the test waits until the server has the first one.
    """
    hold = hold_client(1, round=2)
    server = running()
    until(hold.held.exists)
    until(lambda: "1.0.0" in received)
    durable.superlink.kill()
    durable.restart_superlink()
    hold.release()
    result = server.result(500)
    check_books(result)
    assert [record.trainings[0].failed for record in result.records] == [{}] * 3
    assert np.array_equal(result.parameters, run(small().experiment).parameters)


def test_a_node_that_restarts_in_the_middle_of_a_training(  # noqa: PLR0917 (fixtures)
    durable, small, running, hold_client, until, start_again, locally_with_the_same_faults
):
    """What it was at is lost and said to be; it takes part again in the next round, as the same client."""
    hold, last = hold_client(1, round=2), hold_client(0, round=2)
    server = running()
    until(hold.held.exists)
    until(last.held.exists)  # the round is not over before the node is back
    durable.nodes[1].child.kill()
    start_again(durable, durable.nodes[1])
    hold.release()
    last.release()
    result = server.result(500)
    check_books(result)
    assert [record.trainings[0].clients for record in result.records] == [[0, 1], [0], [0, 1]]
    assert "its node is gone" in result.records[1].trainings[0].failed[1]
    local = locally_with_the_same_faults(small(), result.records)
    assert np.array_equal(result.parameters, local.parameters)


def test_a_server_that_is_killed_in_the_middle_of_an_aggregation(durable, small, start_server, mischief, until):
    """All answers of round 2 are summed, and the new model is not stored yet: the round is done again, once."""
    order, paused = mischief / "pause-2", mischief / "paused-2"
    order.touch()
    signed = ("--allow-list", str(durable.allow_list))
    server = start_server(small(), durable.link, *signed, program=(str(HERE / "pausing.py"),))
    try:
        server.round()
        until(paused.exists)
        server.kill()
    finally:
        order.unlink()
    result = run_on_link(small(resume=True), durable.link, allow_list=durable.allow_list)
    check_books(result)
    assert [record.trainings[0].clients for record in result.records] == [[0, 1]] * 3
    assert np.array_equal(result.parameters, run(small().experiment).parameters)
    # Both nodes did the work of round 2 twice; it counts once.
    for node in durable.nodes:
        assert node.child.log.read_text().count("train 1.0.0: done") >= 2
