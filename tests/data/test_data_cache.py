"""The cache of decoded arrays: keyed by the files' identity, whole or absent, damage noticed."""

from __future__ import annotations

import logging
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from muster.core.errors import OutputError
from muster.data.cache import cache_dir, cached


class Decoder:
    """Counts how often it has to decode."""

    def __init__(self, value: int = 1) -> None:
        self.calls, self.value = 0, value

    def __call__(self, new):
        self.calls += 1
        large = new("large", (1000, 50), np.uint8)
        large[:] = self.value
        return {"large": large, "small": np.arange(5), "names": np.array(["a", "bc"])}


@pytest.fixture
def source(isolated):
    file = isolated / "source.bin"
    file.write_bytes(b"content")
    return file


def entries():
    return list((cache_dir() / "decoded").iterdir())


def test_second_load_is_mapped_from_disk(source):
    decode = Decoder()
    first = cached("thing", [source], decode)
    second = cached("thing", [source], decode)
    assert decode.calls == 1
    for arrays in (first, second):
        assert arrays["large"].shape == (1000, 50)
        assert arrays["large"].dtype == np.uint8
        assert (arrays["large"] == 1).all()
        assert arrays["small"].tolist() == [0, 1, 2, 3, 4]
        assert arrays["names"].tolist() == ["a", "bc"]
        assert isinstance(arrays["large"].base, np.memmap)
        assert not arrays["large"].flags.writeable
        assert type(arrays["large"]) is np.ndarray


@pytest.mark.parametrize("change", ["content", "time", "options", "name", "version"])
def test_another_identity_is_another_entry(source, change, monkeypatch):
    cached("thing", [source], Decoder(1), size=3)
    if change == "content":
        source.write_bytes(b"longer content")
    if change == "time":
        os.utime(source, ns=(1, 1))
    if change == "version":
        monkeypatch.setattr("muster.data.cache.__version__", "next")
    options = {"size": 4 if change == "options" else 3}
    again = cached("other" if change == "name" else "thing", [source], Decoder(2), **options)
    assert (again["large"] == 2).all()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no manifest", "bad manifest", "file gone"])
def test_damage_is_noticed_and_repaired(source, damage, caplog):
    cached("thing", [source], Decoder(1))
    (entry,) = entries()
    large, manifest = entry / "large.npy", entry / "manifest.json"
    if damage == "truncated":
        large.write_bytes(large.read_bytes()[:-10])
    if damage == "flipped":
        content = bytearray(large.read_bytes())
        content[20_000:24_000] = bytes(4000)
        large.write_bytes(content)
    if damage == "no manifest":
        manifest.unlink()
    if damage == "bad manifest":
        manifest.write_text("{}}")
    if damage == "file gone":
        large.unlink()
    with caplog.at_level(logging.WARNING):
        again = cached("thing", [source], Decoder(2))
    assert (again["large"] == 2).all()
    assert "damaged" in caplog.text
    assert len(entries()) == 1
    assert (cached("thing", [source], Decoder(3))["large"] == 2).all()


def test_failed_decoding_leaves_nothing(source):
    def fail(new):
        new("large", (10,), np.uint8)
        raise ValueError("bad picture")

    with pytest.raises(ValueError, match="bad picture"):
        cached("thing", [source], fail)
    assert entries() == []


def test_entry_that_another_process_placed_meanwhile_is_used(source):
    def decode(new):
        cached("thing", [source], Decoder(1))
        return {"large": np.zeros(3)}

    assert (cached("thing", [source], decode)["large"] == 1).all()
    assert len(entries()) == 1


def test_cache_that_cannot_be_written_is_reported_and_not_needed(source, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("MUSTER_CACHE", str(blocked))
    arrays = cached("thing", [source], Decoder(4))
    assert (arrays["large"] == 4).all()
    assert "stay in memory" in caplog.text


@pytest.mark.parametrize("way", ["mapped", "returned"])
def test_full_disk_is_an_error_and_not_a_crash(source, monkeypatch, way):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=999))

    def decode(new):
        return {"large": new("large", (1000,), np.uint8) if way == "mapped" else np.zeros(1000, np.uint8)}

    with pytest.raises(OutputError, match="MUSTER_CACHE"):
        cached("thing", [source], decode)
    assert entries() == []


def test_mapped_arrays_outlive_a_repair(source):
    # On a system that keeps open files, a run must not break when another process rebuilds the entry.
    arrays = cached("thing", [source], Decoder(1))
    shutil.rmtree(entries()[0])
    assert (arrays["large"] == 1).all()


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("MUSTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_dir() == tmp_path / "xdg" / "muster"
