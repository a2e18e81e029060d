"""What clients keep, and in which version."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import RecordDict

from muster.engine.task import ClientTask, Place
from muster.flower.memory import NodeMemory
from muster.flower.wire import Order
from muster.training.context import PROBE, PROBE_VELOCITY

NAMES = ("control",)


def order(round: int, exchange: int = 0, **versions: str) -> Order:
    task = ClientTask.of("train", 3, Place(round, 0, exchange), lr=0.1)
    return Order("e", "partition-id=3", task, **versions)


def vector(value: float) -> np.ndarray:
    return np.full(4, value, dtype=np.float32)


@pytest.fixture
def context():
    return RecordDict()


def test_a_new_client_has_nothing_and_has_lost_nothing(context):
    assert NodeMemory(context, "e").state_for(order(0), NAMES) == ({}, False)


def test_state_is_there_for_the_next_training(context):
    NodeMemory(context, "e").trained(order(0), {"control": vector(1)})
    found, lost = NodeMemory(context, "e").state_for(order(1, state="0.0.0"), NAMES)
    assert not lost
    assert np.array_equal(found["control"], vector(1))


def test_the_version_before_stays_until_the_server_counts_on_the_next(context):
    memory = NodeMemory(context, "e")
    memory.trained(order(0), {"control": vector(1)})
    memory.trained(order(1, state="0.0.0"), {"control": vector(2)})  # the answer came too late
    assert memory.state_for(order(2, state="0.0.0"), NAMES)[0]["control"][0] == 1
    assert memory.state_for(order(2, state="1.0.0"), NAMES)[0]["control"][0] == 2
    memory.trained(order(2, state="1.0.0"), {"control": vector(3)})
    assert memory.state_for(order(3, state="0.0.0"), NAMES) == ({}, True)
    assert memory.state_for(order(3, state="2.0.0"), NAMES)[0]["control"][0] == 3


def test_an_update_that_was_refused_leaves_the_client_where_it_was(context):
    """The server says so by counting on the version before, in as many trainings as it refuses."""
    memory = NodeMemory(context, "e")
    memory.trained(order(0), {"control": vector(1)})
    for round in (1, 2, 3):
        again = order(round, state="0.0.0")
        assert memory.state_for(again, NAMES)[0]["control"][0] == 1
        memory.trained(again, {"control": vector(10 + round)})
    assert memory.state_for(order(4, state="0.0.0"), NAMES)[0]["control"][0] == 1


def test_a_first_update_that_was_refused_leaves_a_new_client(context):
    memory = NodeMemory(context, "e")
    memory.trained(order(0), {"control": vector(1)})
    assert memory.state_for(order(1), NAMES) == ({}, False)


def test_the_checkpoints_version_stays_through_many_trainings(context):
    """A server that goes back to its checkpoint counts on what it had saved."""
    memory = NodeMemory(context, "e")
    memory.trained(order(0), {"control": vector(1)})
    memory.trained(order(1, 0, state="0.0.0", saved="0.0.0"), {"control": vector(2)})
    memory.trained(order(1, 1, state="1.0.0", saved="0.0.0"), {"control": vector(3)})
    memory.trained(order(1, 2, state="1.0.1", saved="0.0.0"), {"control": vector(4)})
    assert memory.state_for(order(1, 0, state="0.0.0"), NAMES)[0]["control"][0] == 1
    assert len(context.array_records["muster.state"]) == 3
    memory.trained(order(2, state="1.0.2", saved="1.0.2"), {"control": vector(5)})
    assert len(context.array_records["muster.state"]) == 2


def test_a_server_that_starts_again_gets_a_new_client(context):
    NodeMemory(context, "e").trained(order(5), {"control": vector(1)})
    assert NodeMemory(context, "e").state_for(order(0), NAMES) == ({}, False)


def test_lost_state_is_noticed(context):
    assert NodeMemory(context, "e").state_for(order(1, state="0.0.0"), NAMES) == ({}, True)
    assert NodeMemory(context, "e").state_for(order(1, state="0.0.0"), ()) == ({}, False)


def test_another_experiment_finds_nothing(context):
    NodeMemory(context, "e").trained(order(0), {"control": vector(1)})
    assert NodeMemory(context, "other").state_for(order(1, state="0.0.0"), NAMES) == ({}, True)


def test_a_probe_is_used_once_and_only_where_the_server_counts_on_it(context):
    memory = NodeMemory(context, "e")
    memory.trained(order(0), {"control": vector(1)})
    memory.asked(order(1, state="0.0.0"), {PROBE: vector(7), PROBE_VELOCITY: vector(8)})
    assert PROBE not in memory.state_for(order(1, 1, state="0.0.0"), NAMES)[0]
    found, lost = memory.state_for(order(1, 1, state="0.0.0", probe="1.0.0"), NAMES)
    assert (set(found), lost) == ({"control", PROBE, PROBE_VELOCITY}, False)
    memory.asked(order(1, 1, state="0.0.0"), {})
    assert memory.state_for(order(1, 2, probe="1.0.0"), ())[0][PROBE][0] == 7
    memory.trained(order(1, 1, state="0.0.0", probe="1.0.0"), {"control": vector(2)})
    assert memory.state_for(order(2, state="1.0.1", probe="1.0.0"), NAMES)[1]
    assert memory.state_for(order(2, state="1.0.1"), NAMES)[0]["control"][0] == 2
