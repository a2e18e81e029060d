"""Checkpoints: what goes in comes out, damage is noticed, a crash never leaves half a file."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.core.errors import CheckpointError, OutputError
from muster.results import checkpoint

ARRAYS = st.sampled_from([np.float32, np.float64, np.int64, np.bool_]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=4, min_side=0))
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | st.text(max_size=5) | ARRAYS
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def same(left, right) -> bool:
    if isinstance(left, np.ndarray):
        return (
            left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right, equal_nan=True)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


@given(st.dictionaries(st.text(max_size=4), TREES, max_size=4))
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("checkpoint") / "c.muster"
    checkpoint.save(path, "abc", values)
    assert same(values, checkpoint.load(path, "abc"))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "c.muster"
    checkpoint.save(path, "abc", {"parameters": np.arange(1000, dtype=np.float32), "round": 3})
    return path


def test_another_experiment_is_refused(saved):
    with pytest.raises(CheckpointError, match="another experiment"):
        checkpoint.load(saved, "xyz")


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_damage_is_noticed(saved, where):
    content = bytearray(saved.read_bytes())
    content[int(where * len(content))] ^= 0xFF
    saved.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(saved, "abc")


def test_damage_anywhere_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "c.muster"
    checkpoint.save(path, "abc", {"round": 3})
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            assert checkpoint.load(path, "abc") == {"round": 3}
        except CheckpointError:
            continue


@pytest.mark.parametrize("length", [0, 10, 2000])
def test_a_file_that_was_cut_off_is_noticed(saved, length):
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(saved, "abc")


def test_a_newer_format_is_refused(saved, monkeypatch):
    monkeypatch.setattr(checkpoint, "READABLE", (0, 1))
    with pytest.raises(CheckpointError, match="format 2"):
        checkpoint.load(saved, "abc")


@pytest.mark.parametrize("small", [True, False])
def test_files_of_both_layouts_hold_the_same(tmp_path, monkeypatch, small):
    values: dict[str, np.ndarray] = {
        "vector": np.arange(5, dtype=np.float32),
        "matrix": np.arange(6).reshape(2, 3).T,
        "nothing": np.zeros((0, 4)),
        "number": np.array(7.5),
        "mask": np.array([True, False]),
    }
    if not small:
        monkeypatch.setattr(checkpoint, "SMALL", 0)
    checkpoint.save(tmp_path / "a.ckpt", "abc", values)
    found = checkpoint.load(tmp_path / "a.ckpt", "abc")
    for key, value in values.items():
        assert found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)
        assert found[key].flags.writeable
    assert checkpoint.load(tmp_path / "a.ckpt", "abc", keys=["mask"]).keys() == {"mask"}


def test_the_first_format_is_read(tmp_path, monkeypatch):
    """Every array in a member of its own, whatever its size."""
    monkeypatch.setattr(checkpoint, "SMALL", 0)
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    checkpoint.save(tmp_path / "a.ckpt", "abc", {"vector": np.arange(3)})
    monkeypatch.undo()
    assert checkpoint.load(tmp_path / "a.ckpt", "abc")["vector"].tolist() == [0, 1, 2]


def test_a_full_disk_keeps_the_old_checkpoint(saved, monkeypatch):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        checkpoint.save(saved, "abc", {"parameters": np.zeros(10)})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_objects_are_refused_instead_of_pickled(tmp_path):
    with pytest.raises(TypeError, match="cannot hold"):
        checkpoint.save(tmp_path / "c.muster", "abc", {"thing": object()})
    with pytest.raises(ValueError, match="Object arrays"):
        checkpoint.save(tmp_path / "c.muster", "abc", {"thing": np.array([object()])})
