"""The store of per-client vectors."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import OutputError
from muster.updates.clientstate import ClientStore


def vector(client: int, length: int = 5) -> np.ndarray:
    return np.arange(length, dtype=np.float32) + 100 * client


def test_unknown_clients_and_names_have_nothing() -> None:
    store = ClientStore()
    assert store.get("c", 3) is None
    store.put("c", 3, vector(3))
    assert store.get("c", 4) is None
    assert store.get("d", 3) is None
    assert store.clients("c") == [3]


def test_vectors_are_copied_in_and_out() -> None:
    store = ClientStore()
    mine = vector(1)
    store.put("c", 1, mine)
    mine[:] = -1
    got = store.get("c", 1)
    got[:] = -2
    np.testing.assert_array_equal(store.get("c", 1), vector(1))
    row = np.empty(5, dtype=np.float32)
    assert store.get("c", 1, out=row) is row
    np.testing.assert_array_equal(row, vector(1))


def test_another_length_under_the_same_name_is_refused() -> None:
    store = ClientStore()
    store.put("c", 1, vector(1))
    with pytest.raises(ValueError, match="length 5, not 6"):
        store.put("c", 2, vector(2, 6))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "drop", "reload"]), st.sampled_from("ab"), st.integers(0, 12)),
        max_size=60,
    ),
    st.sampled_from([0, 300, 10**6]),
)
def test_behaves_like_a_dictionary_at_any_memory_limit(steps: list[tuple[str, str, int]], limit: int) -> None:
    store, truth = ClientStore(memory_limit=limit), {}
    for number, (verb, name, client) in enumerate(steps):
        if verb == "put":
            truth[name, client] = vector(number)
            store.put(name, client, vector(number))
        elif verb == "drop":
            truth = {key: value for key, value in truth.items() if key[0] != name}
            store.drop(name)
        else:
            store.load_state_dict(store.state_dict())
        assert store.resident_bytes <= limit
    for name in "ab":
        assert set(store.clients(name)) == {client for key, client in truth if key == name}
        for client in store.clients(name):
            np.testing.assert_array_equal(store.get(name, client), truth[name, client])
    store.close()


def test_beyond_the_limit_vectors_live_in_the_directory_and_close_removes_them(tmp_path: Path) -> None:
    store = ClientStore(memory_limit=10_000, directory=tmp_path / "scratch")
    for client in range(50):
        store.put("c", client, vector(client, 1000))
    assert store.resident_bytes <= 10_000
    assert sum(file.stat().st_size for file in (tmp_path / "scratch").iterdir()) >= 50 * 4000
    np.testing.assert_array_equal(store.get("c", 37), vector(37, 1000))
    store.close()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_spilled_vectors_do_not_cost_memory_even_when_saved(tmp_path: Path) -> None:
    store = ClientStore(memory_limit=0, directory=tmp_path)
    store.put("c", 0, vector(0, 100_000))
    tracemalloc.start()
    for client in range(1, 30):
        store.put("c", client, np.zeros(100_000, dtype=np.float32))
    state = store.state_dict()
    np.save(tmp_path / "saved.npy", state["c"]["vectors"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    restored = ClientStore()
    saved = {"c": {"clients": state["c"]["clients"], "vectors": np.load(tmp_path / "saved.npy", mmap_mode="r")}}
    restored.load_state_dict(saved)
    np.testing.assert_array_equal(restored.get("c", 0), vector(0, 100_000))
    assert restored.clients("c") == list(range(30))


def test_a_full_disk_is_an_error_one_can_act_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("muster.updates.clientstate.os.posix_fallocate", full)
    store = ClientStore(memory_limit=0, directory=tmp_path)
    with pytest.raises(OutputError, match="No space left on device"):
        store.put("c", 0, vector(0))


def test_a_store_is_empty_until_somebody_has_something() -> None:
    store = ClientStore()
    assert store.empty
    assert store.clients("c") == []
    store.put("c", 4, vector(4))
    assert not store.empty
    store.drop("c", "never there")
    assert store.empty


def test_clients_stay_in_the_order_in_which_they_came() -> None:
    store = ClientStore()
    for client in (9, 2, 5, 2, 9, 0, 7):
        store.put("c", client, vector(client))
    assert store.clients("c") == [9, 2, 5, 0, 7]
    state = store.state_dict()["c"]
    assert state["clients"].tolist() == [9, 2, 5, 0, 7]
    np.testing.assert_array_equal(state["vectors"], np.stack([vector(c) for c in (9, 2, 5, 0, 7)]))


def test_memory_is_what_the_vectors_take_and_room_for_twice_as_many_at_most() -> None:
    store, each = ClientStore(), 5 * 4
    for count in range(1, 40):
        store.put("c", count, vector(count))
        assert count * each <= store.resident_bytes <= max(4, 2 * count) * each
    restored = ClientStore()
    restored.load_state_dict(store.state_dict())
    assert restored.resident_bytes == 39 * each


def test_memory_is_used_up_to_the_limit_and_the_file_only_beyond(tmp_path: Path) -> None:
    limit = 8 * 5 * 4
    store = ClientStore(memory_limit=limit, directory=tmp_path)
    for client in range(8):
        store.put("c", client, vector(client))
    assert (store.resident_bytes, list(tmp_path.iterdir())) == (limit, [])
    store.put("c", 8, vector(8))
    assert store.resident_bytes == 0
    assert len(list(tmp_path.iterdir())) == 1
    # Another name has all of the memory now.
    store.put("d", 0, vector(0))
    assert store.resident_bytes == 4 * 5 * 4
    for client in range(9):
        np.testing.assert_array_equal(store.get("c", client), vector(client))


def test_files_of_what_is_dropped_or_replaced_are_removed(tmp_path: Path) -> None:
    store = ClientStore(memory_limit=0, directory=tmp_path)
    store.put("c", 1, vector(1))
    store.put("d", 1, vector(2))
    (kept,) = [path for path in tmp_path.iterdir() if path.name.startswith("d-")]
    store.drop("c")
    assert list(tmp_path.iterdir()) == [kept]
    store.load_state_dict({"e": {"clients": np.array([3]), "vectors": vector(3)[None]}})
    assert [path.name[0] for path in tmp_path.iterdir()] == ["e"]
    np.testing.assert_array_equal(store.get("e", 3), vector(3))


def test_a_scratch_directory_of_its_own_is_gone_after_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = ClientStore(memory_limit=0)
    store.put("c", 1, vector(1))
    store.put("d", 1, vector(1))
    assert len(list(tmp_path.iterdir())) == 1, "one for all names"
    store.close()
    assert list(tmp_path.iterdir()) == []
    assert store.empty
    store.put("c", 1, vector(1))  # and it can be used again
    np.testing.assert_array_equal(store.get("c", 1), vector(1))
    store.close()


def test_systems_that_cannot_reserve_blocks_make_the_file_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("muster.updates.clientstate.os.posix_fallocate")
    store = ClientStore(memory_limit=0, directory=tmp_path)
    for client in range(6):
        store.put("c", client, vector(client))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [8 * 5 * 4]
    np.testing.assert_array_equal(store.get("c", 5), vector(5))
