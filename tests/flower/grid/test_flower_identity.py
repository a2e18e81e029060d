"""Client ids stay what they are, whatever becomes of nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.flower.identity import ClientRegister
from muster.flower.wire import Introduction


def partition(number: int, size: int = 10) -> Introduction:
    return Introduction(f"partition-id={number}", size, 0)


def named(name: str, size: int = 10) -> Introduction:
    return Introduction(f"name={name}", size, 0)


def test_partitions_are_client_ids():
    registry = ClientRegister(expected=np.array([10, 10, 10]))
    registry.introduce({901: partition(2), 702: partition(0)}, [901, 702])
    assert registry.nodes == {2: 901, 0: 702}
    assert registry.present([901, 702]).tolist() == [0, 2]
    assert registry.present([901]).tolist() == [2]
    assert registry.population.tolist() == [10, 10, 10]


def test_names_get_ids_in_their_order_whoever_was_quicker():
    registry = ClientRegister()
    registry.introduce({1: named("c", 30), 2: named("a", 10), 3: named("b", 20)}, [1, 2, 3])
    assert registry.ids == {"name=a": 0, "name=b": 1, "name=c": 2}
    assert registry.population.tolist() == [10, 20, 30]
    registry.introduce({4: named("aa", 40)}, [1, 2, 3, 4])
    assert registry.ids["name=aa"] == 3
    assert registry.population.tolist() == [10, 20, 30, 40]


def test_partitions_of_own_data_are_sorted_as_numbers():
    registry = ClientRegister()
    registry.introduce({k: partition(k) for k in (10, 2, 1)}, [10, 2, 1])
    assert registry.ids == {"partition-id=1": 0, "partition-id=2": 1, "partition-id=10": 2}


def test_who_comes_back_keeps_its_id():
    registry = ClientRegister()
    registry.introduce({1: named("a"), 2: named("b")}, [1, 2])
    registry.introduce({9: named("a")}, [2, 9])  # node 1 is gone
    assert registry.nodes == {0: 9, 1: 2}
    assert registry.take_events()[-1] == "client 0 ('name=a') is back as node 9"


def test_a_second_node_with_the_same_identity_is_refused():
    registry = ClientRegister()
    registry.introduce({1: named("a")}, [1])
    registry.introduce({2: named("a")}, [1, 2])
    assert registry.nodes == {0: 1}
    assert "node 2 claims to be 'name=a', which node 1 is: refused" in registry.take_events()


def test_of_two_strangers_with_the_same_identity_neither_is_believed():
    registry = ClientRegister(expected=np.array([10, 10]))
    registry.introduce({1: partition(0), 2: partition(0), 3: partition(1)}, [1, 2, 3])
    assert registry.nodes == {1: 3}
    assert "nodes 1 and 2 all claim to be 'partition-id=0'" in registry.take_events()[-1]


def test_identities_outside_the_partition_are_refused():
    registry = ClientRegister(expected=np.array([10, 10]))
    strangers = {
        1: partition(2),
        2: named("a"),
        3: Introduction("partition-id=-1", 10, 0),
        4: partition(1, size=11),
    }
    registry.introduce(strangers, strangers)
    assert registry.nodes == {}
    said = "\n".join(registry.take_events())
    assert said.count("the experiment has the partitions 0 to 1") == 3
    assert "has 11 samples, but the partition gives it 10" in said


def test_no_node_has_more_test_samples_than_the_partition_gives_it():
    """Where clients evaluate, they count by these."""
    registry = ClientRegister(expected=np.array([10, 10]), expected_tests=np.array([4, 4]))
    registry.introduce(
        {1: Introduction("partition-id=0", 10, 4), 2: Introduction("partition-id=1", 10, 5)}, [1, 2]
    )
    assert registry.nodes == {0: 1}
    assert "has 5 test samples, but the partition gives it 4: refused" in registry.take_events()[-1]


@pytest.mark.parametrize(
    "key", ["partition-id=00", "partition-id=٠", "partition-id= 0", "partition-id=0\n", "PARTITION-ID=0"]
)
def test_another_spelling_does_not_take_a_clients_place(key):
    registry = ClientRegister(expected=np.array([10, 10]))
    registry.introduce({1: partition(0)}, [1])
    registry.introduce({2: Introduction(key, 10, 0)}, [1, 2])
    assert registry.nodes == {0: 1}
    assert "refused" in registry.take_events()[-1]


def test_identities_survive_a_restart_of_the_server():
    before = ClientRegister()
    before.introduce({1: named("b", 20), 2: named("c", 30)}, [1, 2])
    saved = before.state_dict()
    after = ClientRegister()
    after.introduce({7: named("a", 10), 8: named("b", 20), 9: named("c", 30)}, [7, 8, 9])
    after.load_state_dict(saved)
    assert after.ids == {"name=b": 0, "name=c": 1, "name=a": 2}
    assert after.nodes == {0: 8, 1: 9, 2: 7}
    assert after.population.tolist() == [20, 30, 10]


def test_clients_that_are_away_after_a_restart_keep_their_place():
    before = ClientRegister()
    before.introduce({1: named("a", 10), 2: named("b", 20)}, [1, 2])
    after = ClientRegister()
    after.introduce({5: named("b", 20)}, [5])
    after.load_state_dict(before.state_dict())
    assert after.nodes == {1: 5}
    assert after.population.tolist() == [10, 20]
    assert after.present([5]).tolist() == [1]


def test_many_newcomers_are_one_line():
    registry = ClientRegister()
    registry.introduce({k: partition(k) for k in range(20)}, range(20))
    assert registry.take_events() == ["20 clients joined"]
    registry.introduce({99: partition(99)}, [99])
    assert registry.take_events() == ["client 20 ('partition-id=99') joined as node 99"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans()), max_size=30))
def test_ids_never_change_and_have_no_gaps(steps):
    """Whatever nodes claim, come and go, and however often the server starts again."""
    registry, online, ids = ClientRegister(), set[int](), dict[str, int]()
    for node, name, restart in steps:
        online ^= {node}
        if node in online:
            registry.introduce({node: named(name)}, online)
        if restart:
            saved, registry = registry.state_dict(), ClientRegister()
            registry.load_state_dict(saved)
        assert ids.items() <= registry.ids.items()
        ids = dict(registry.ids)
        assert sorted(ids.values()) == list(range(len(ids)))
        assert len(set(registry.nodes.values())) == len(registry.nodes)
        assert len(registry.population) == len(ids)
