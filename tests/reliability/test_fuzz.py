"""Fuzzing, short: `make fuzz` does the same for minutes. What it has found stays found."""

from __future__ import annotations

import json
import sqlite3
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster.config.experiment import load
from muster.core.errors import CheckpointError, ConfigError, DataError, StoreError
from muster.data.own import from_arrays, from_folder
from muster.data.sources._pictures import picture
from muster.results import checkpoint
from muster.results.store import Store, codec
from muster.results.store.schema import translated
from muster.server.loop import Observer
from muster.world import traces

QUICK = ("experiment-files", "sweep-files", "traces", "own-tables")


@pytest.mark.parametrize("name", QUICK)
def test_a_few_inputs_of_the_quick_targets_are_taken_or_refused(tool: Any, name: str) -> None:
    tally = tool("fuzz").fuzz(name, seed=99, seconds=0, inputs=60)
    assert tally.findings == {}
    assert tally.taken + tally.refused == 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["experiment-values", "checkpoints", "store-rows", "sample-files"])
def test_some_inputs_of_the_slow_targets_are_taken_or_refused(tool: Any, name: str) -> None:
    tally = tool("fuzz").fuzz(name, seed=99, seconds=0, inputs=150)
    assert tally.findings == {}


@pytest.mark.flower
def test_some_messages_are_taken_or_refused(tool: Any) -> None:
    assert tool("fuzz").fuzz("wire-messages", seed=99, seconds=0, inputs=500).findings == {}


def test_a_finding_is_one(tool: Any) -> None:
    """What is neither taken nor refused is told, with the input that led to it."""
    program = tool("fuzz")
    program.TARGETS["broken"] = lambda folder: lambda rng: 1 // (rng.random() > 0.5)
    tally = program.fuzz("broken", seed=0, seconds=0, inputs=20)
    ((what, (first, times)),) = tally.findings.items()
    assert "ZeroDivisionError" in what
    assert tally.taken + times == 20
    with pytest.raises(ZeroDivisionError):
        program.attempt_one(program.TARGETS["broken"](None), f"0 broken {first}")


# --- what was found ------------------------------------------------------------------------------------------


def test_a_file_of_countless_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 3000)
    with pytest.raises(ConfigError, match="too deep"):
        load(path)


@pytest.fixture
def stopped(tiny: Any, tmp_path: Path) -> tuple[muster.Experiment, Path]:
    """A run that was stopped after its first round, and its folder."""

    class Stop(Observer):
        def wants_stop(self) -> bool:
            return True

    experiment = tiny(rounds=2)
    muster.run(experiment, workers=0, out=tmp_path, observers=[Stop()])
    return experiment, tmp_path


def rewritten(folder: Path, change: Any, method: int = zipfile.ZIP_STORED) -> None:
    """Change the tree of a checkpoint; its checksums are right again."""
    (path,) = folder.glob("checkpoints/*/*.muster")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    tree = json.loads(members["tree.json"])
    members["tree.json"] = json.dumps(change(tree)).encode()
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


CHANGES = {
    "no tree": lambda tree: [],
    "no experiment": lambda tree: {"format": 2},
    "no layout": lambda tree: tree | {"layout": 7},
    "a type that is none": lambda tree: tree | {"layout": [[10**30, [1]]]},
    "a shape that is none": lambda tree: tree | {"layout": [["<f4", ["x"]]]},
    "objects": lambda tree: tree | {"layout": [["|O", [1]]]},
    "values that are no dict": lambda tree: tree | {"values": {"__dict__": 3}},
    "an array as a key": lambda tree: tree | {"values": {"__dict__": [[{"__array__": 0}, 1]]}},
    "deep": lambda tree: tree | {"values": {"__dict__": [["a", _nested(500)]]}},
}


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_that_somebody_has_changed_is_refused(stopped: Any, change: Any) -> None:
    experiment, folder = stopped
    rewritten(folder, change)
    with pytest.raises(CheckpointError):
        muster.run(experiment, workers=0, out=folder, resume=True)


def test_a_compressed_checkpoint_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.muster"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tree.json", json.dumps({"format": 2, "experiment": "abc", "values": {}}))
        archive.writestr("arrays.bin", bytes(10_000_000))
    with pytest.raises(CheckpointError, match="compressed"):
        checkpoint.load(path, "abc")


def test_a_model_of_another_size_is_refused(stopped: Any) -> None:
    experiment, folder = stopped
    (path,) = folder.glob("checkpoints/*/*.muster")
    state = checkpoint.load(path, experiment.fingerprint)
    checkpoint.save(path, experiment.fingerprint, state | {"parameters": np.zeros(3, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"a model of shape \(3,\)"):
        muster.run(experiment, workers=0, out=folder, resume=True)


@pytest.mark.parametrize("key", ["history", "spec", "privacy"])
def test_a_checkpoint_without_a_part_has_no_result(stopped: Any, key: str) -> None:
    experiment, folder = stopped
    (path,) = folder.glob("checkpoints/*/*.muster")
    state = checkpoint.load(path, experiment.fingerprint)
    del state[key]
    checkpoint.save(path, experiment.fingerprint, state)
    with Store(folder) as store, pytest.raises(CheckpointError, match="holds something else"):
        store.result(experiment.fingerprint)


CELLS: dict[str, Any] = {
    "selections.clients": "text",
    "selections.weights": b"\x01\x02\x03",
    "selections.filtered": "[]",
    "rounds.asks": "[[1]]",
    "rounds.groups": "7",
    "rounds.notes": "[" * 20_000,
    "rounds.client_accuracy": b"\x78\x01 not compressed",
    "rounds.virtual_began": "soon",
    "rounds.round": 9,
    "metrics.value": b"bytes",
    "ledger.samples": "many",
    "ledger.disclosed": '{"a": []}',
    "ledger.round": "first",
    "experiments.config": "[]",
    "experiments.environment": "not JSON",
    "experiments.done": 77,
    "experiments.status": "x",
    "experiments.name": b"\x00",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_row_that_somebody_has_changed_is_one_message(stopped: Any, cell: str) -> None:
    experiment, folder = stopped
    table, column = cell.split(".")
    with sqlite3.connect(folder / "muster.db") as database:
        database.execute(f"UPDATE {table} SET {column} = ?", (CELLS[cell],))
    database.close()
    with pytest.raises(StoreError) as caught, Store(folder) as store:
        store.results(status=None)
    assert "row that cannot be read" in caught.value.problem
    with pytest.raises(StoreError):
        muster.run(experiment, workers=0, out=folder, resume=True)


def test_a_database_whose_names_are_no_text_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is damaged"), translated(tmp_path / "muster.db"):
        b"\x9f".decode()


@pytest.mark.flower
def test_a_list_of_signals_that_is_too_deep_is_refused() -> None:
    from muster.flower.wire import WireError, signals_from_text

    with pytest.raises(WireError, match="cannot be understood"):
        signals_from_text("[" * 2000 + "]" * 2000, 10)


def test_numbers_of_more_than_64_bits_are_refused() -> None:
    for given in ({"labels": [2**70, 0] * 10}, {"labels": [0, 1] * 10, "clients": [2**70, 0] * 10}):
        with pytest.raises(DataError, match=r"(?s)more than 64 bits.*as text"):
            from_arrays(np.ones((20, 2)), **given)


def test_clients_of_several_types_are_refused() -> None:
    clients = np.array(["a", ["b"], 3, "d"] * 5, dtype=object)
    with pytest.raises(DataError, match="of several types"):
        from_arrays(np.ones((20, 2)), [0, 1] * 10, clients=clients)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': (", b"\x93NUMPY\x01\x00\x06\x00{'a': ", b"\x93NUMPY"]
)
def test_a_damaged_sample_is_named(tmp_path: Path, content: bytes) -> None:
    for client in "ab":
        for label in "xy":
            place = tmp_path / client / label
            place.mkdir(parents=True)
            for number in range(3):
                np.save(place / f"{number}.npy", np.zeros((3, 4, 4), dtype=np.float32))
    (tmp_path / "a" / "x" / "0.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"0\.npy"):
        from_folder(tmp_path)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot decode"):
        picture(b"\x89PNG\r\n\x1a\n\x00\x00\x00\x02IHDR\x00\x00", "RGB")


def test_a_trace_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="is not JSON"):
        traces.speeds(str(path))


def test_accuracies_that_would_fill_the_memory_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(codec, "_LARGEST", 1000)
    assert len(codec.unpack_accuracies(zlib.compress(bytes(998)))) == 249
    with pytest.raises(ValueError, match="damaged, or of more clients"):
        codec.unpack_accuracies(zlib.compress(bytes(1002)))
