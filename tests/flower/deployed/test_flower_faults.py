"""Nodes that die, freeze and return, and a server that is killed: the run completes, and the books are right."""

from __future__ import annotations

import signal
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.experiment import replay, run
from muster.flower.identity import ClientRegister
from muster.flower.wire import Introduction
from muster.results.store import Store

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

#: Seconds that clients have: more than an exchange takes on a busy machine, less than a stopped node's heartbeat.
DEADLINE = 25


def test_killed_stopped_and_restarted_nodes_and_a_killed_server(  # noqa: PLR0917 (fixtures)
    federation, task, mischief, until, locally_with_the_same_faults, hold_client, start_server, start_again
):
    killed, stopped, restarted = federation.nodes[2], federation.nodes[3], federation.nodes[5]
    experiment = task("rounds=7", f"flower.deadline={DEADLINE}", "flower.wait=120")
    holds = {2: hold_client(2, round=2), 3: hold_client(3, round=3), 5: hold_client(5, round=4)}
    holds[0] = hold_client(0, round=6)
    server = start_server(experiment, federation.link)
    records = []
    try:
        records.append(server.round())
        until(holds[2].held.exists)
        killed.child.kill()
        records.append(server.round())
        assert "its node is gone" in records[1].trainings[0].failed[2]

        until(holds[3].held.exists)
        stopped.child.signal(signal.SIGSTOP)
        records.append(server.round())
        assert "no answer within" in records[2].trainings[0].failed[3]
        holds[3].release()
        stopped.child.signal(signal.SIGCONT)

        until(holds[5].held.exists)
        restarted.child.signal(signal.SIGTERM)
        assert restarted.child.wait(60) == 0
        holds[5].release()
        records.append(server.round())
        assert "its node is gone" in records[3].trainings[0].failed[5]

        records.append(server.round())
        until(holds[0].held.exists)
        server.kill()  # five rounds are in the store
        holds[0].release()
        start_again(federation, restarted)
        server = start_server(experiment, federation.link, "--resume", "--set", "flower.nodes=5")
        records += [server.round(), server.round()]
        server.finish()
    finally:
        for hold in holds.values():
            hold.release()
        server.kill()
        stopped.child.signal(signal.SIGCONT)
        for node in federation.nodes:
            if not node.child.alive:
                start_again(federation, node)

    with Store(experiment.out) as store:
        (run_,) = store.runs()
        result, happened = store.result(run_), store.events(run_)
    assert [record.round for record in result.records] == [1, 2, 3, 4, 5, 6, 7]
    assert run_.status == "complete"
    # Nobody counted twice, and the killed node not at all after its death.
    for record in result.records:
        (training,) = record.trainings
        assert len(set(training.clients)) == len(training.clients)
        assert not set(training.clients) & set(training.failed)
        assert 2 not in training.clients or record.round == 1
    counted = Counter(client for record in result.records for client in record.trainings[0].clients)
    assert [counted[client] for client in range(6)] == result.history.trainings.tolist()
    assert [5 in record.trainings[0].clients for record in result.records[3:]] == [False, False, True, True]
    # The store tells what happened.
    told = [event for record in result.records for event in record.events]
    assert any("client 3 answered exchange 2.0.0 too late: dropped" in event for event in told)
    assert any("client 2 is gone" in event for event in told)
    assert any("client 5 is gone" in event for event in told)
    failures = {(event.round, event.client) for event in happened if event.kind == "client failed"}
    assert failures >= {(2, 2), (3, 3), (4, 5)}
    assert "resumed" in {event.kind for event in happened}
    # The model is that of a local run in which the same clients failed.
    local = locally_with_the_same_faults(experiment, result.records)
    assert np.array_equal(result.parameters, local.parameters)
    assert [r.trainings[0].weights for r in result.records] == [r.trainings[0].weights for r in local.records]


def test_clients_remember_when_the_server_is_killed_in_the_middle_of_a_round(  # noqa: PLR0917 (fixtures)
    federation, task, until, without_time, hold_client, start_server
):
    """Control variates live on the nodes. The killed round is done again, from the state before it."""
    experiment = task(
        "rounds=4", "selection.clients_per_round=3", "algorithm.method=scaffold", "aggregation.method=scaffold"
    )
    whole = run(experiment.experiment)
    third = whole.records[2].trainings[0].clients
    hold = hold_client(third[0], round=3)
    server = start_server(experiment, federation.link)
    try:
        server.round(), server.round()
        until(hold.held.exists)
        server.kill()
        hold.release()
        server = start_server(experiment, federation.link, "--resume")
        server.finish()
    finally:
        hold.release()
        server.kill()
    with Store(experiment.out) as store:
        result = store.result(store.runs()[0])
    assert np.array_equal(result.parameters, whole.parameters)
    assert without_time(result) == without_time(whole)


def test_a_server_that_is_killed_with_answers_under_way_goes_on_with_them(
    federation, task, mischief, start_server
):
    """Two clients have been at work since round 1 when the server is killed after round 3."""
    buffered = ("pacing.method=buffered", "pacing.in_flight=4", "pacing.k=2", "selection.clients_per_round=2")
    experiment = task("rounds=6", "flower.wait=120", *buffered)
    # The second two of round 1, whoever they are.
    holds = [mischief / f"hold-{client}-0.1.1" for client in range(6)]
    for hold in holds:
        hold.touch()
    server = start_server(experiment, federation.link)
    try:
        first = [server.round() for _ in range(3)]
        held = sorted(int(path.name.split("-")[1]) for path in mischief.glob("held-*-0.1.1"))
        assert len(held) == 2
        server.kill()
        for hold in holds:
            hold.unlink()
        server = start_server(experiment, federation.link, "--resume")
        server.finish()
    finally:
        for path in (*holds, *mischief.glob("held-*")):
            path.unlink(missing_ok=True)
        server.kill()
    with Store(experiment.out) as store:
        result = store.result(store.runs()[0])
    assert [record.trainings for record in result.records[:3]] == [record.trainings for record in first]
    told = [event for event in result.records[3].events if "the server had been away" in event]
    assert told == [f"client {c} was told to train once more: the server had been away" for c in held]
    flown = [training.flown for record in result.records for training in record.trainings]
    landed = {
        c: (at, s) for at, f in enumerate(flown) for c, s in zip(f.clients, f.staleness, strict=True) if s >= 3
    }
    assert sorted(landed) == held
    assert all(at == staleness for at, staleness in landed.values())
    assert replay(str(experiment.out), workers=0).differences == []


def test_a_client_that_leaves_and_returns_is_told():
    registry = ClientRegister()
    registry.introduce({7: Introduction("name=north", 10, 0), 8: Introduction("name=south", 10, 0)}, [7, 8])
    assert registry.changes([7, 8], [7, 8, 9]) == []
    assert registry.changes([7, 8], [7]) == ["client 1 is gone"]
    assert registry.changes([7], [7, 8]) == ["client 1 is there again"]
