"""What reads files and messages of others. A target makes valid examples once, then judges changed ones."""

from __future__ import annotations

import io
import json
import random
import shutil
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mutation import NASTY, SMALL, changed_bytes, changed_tree, deep

import muster
from muster.experiment import from_dict

#: Reads one changed input; whatever it raises is judged by the caller.
Attempt = Callable[[random.Random], None]

VALUES: dict[str, Any] = {
    "rounds": 3,
    "seed": 1,
    "data": {"source": "synthetic", "samples": 60},
    "partition": {"scheme": "dirichlet", "clients": 5, "alpha": 0.5, "min_size": 1},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.1, "batch_size": 8, "epochs": 1},
    "selection": {"method": "oort", "clients_per_round": 3},
    "aggregation": {"method": "fedavg"},
}
#: More sections, some of which each attempt at an experiment has as well.
SECTIONS: dict[str, Any] = {
    "selection": {"method": "power-of-choice", "clients_per_round": 2, "candidates": 4},
    "aggregation": {"method": "trimmed-mean", "trim": 0.2},
    "algorithm": {"method": "fedprox", "mu": 0.1},
    "devices": {"method": "phones", "flops_per_sample": 1e9},
    "availability": {"method": "bernoulli", "probability": 0.7},
    "pacing": {"method": "buffered", "in_flight": 3, "k": 2},
    "privacy": {"epsilon": 1.0, "signals": ["loss"]},
    "guard": {"max_norm": 10.0, "max_failed_rounds": 3},
    "limits": {"max_samples": 100},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2, "final": "model"},
    "engine": {"kind": "inline", "workers": 0},
    "flower": {"deadline": 5.0},
    "filters": [{"method": "clip", "max_norm": 1.0}],
}


# --- experiment files ----------------------------------------------------------------------------------------


def experiment_files(folder: Path) -> Attempt:
    """Text that should be TOML, as `muster run FILE` reads it."""
    from muster.config.experiment import load

    examples = [path.read_bytes() for path in sorted(Path("examples").glob("*.toml")) if "sweep" not in path.name]
    examples.append(b"a = " + deep("[", 3000).encode())
    path = folder / "experiment.toml"

    def attempt(rng: random.Random) -> None:
        path.write_bytes(changed_bytes(rng, rng.choice(examples)))
        experiment = load(path)
        experiment.check()
        assert len(experiment.fingerprint) > 8

    return attempt


def sweep_files(folder: Path) -> Attempt:
    from muster.experiment.sweep import load_sweep

    examples = [path.read_bytes() for path in sorted(Path("examples").glob("sweep*.toml"))]
    path = folder / "sweep.toml"

    def attempt(rng: random.Random) -> None:
        path.write_bytes(changed_bytes(rng, rng.choice(examples)))
        for experiment in load_sweep(path).experiments():
            experiment.check()

    return attempt


def experiment_values(folder: Path) -> Attempt:
    """Values of the wrong type, size or kind, up to everything that is checked before round 1."""
    from muster.experiment.parts import build_parts

    def attempt(rng: random.Random) -> None:
        extra = rng.sample(sorted(SECTIONS), rng.randrange(4))
        values = changed_tree(rng, VALUES | {name: SECTIONS[name] for name in extra}, SMALL)
        experiment = from_dict(values)
        parts = build_parts(experiment, workers=0)
        with parts.engine:
            parts.server().check(experiment.rounds)

    return attempt


# --- checkpoints and stores ----------------------------------------------------------------------------------


def _stopped_run(folder: Path) -> tuple[Any, Path]:
    """A run that was stopped after two of three rounds, and its checkpoint."""
    from muster.server.loop import Observer

    class Stop(Observer):
        done = 0

        def round_ended(self, record: Any, ledger: Any) -> None:
            self.done = record.round

        def wants_stop(self) -> bool:
            return self.done == 2

    experiment = from_dict(VALUES)
    muster.run(experiment, workers=0, out=folder, observers=[Stop()])
    (path,) = folder.glob("checkpoints/*/*.muster")
    return experiment, path


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def checkpoints(folder: Path) -> Attempt:
    """Damaged files, and whole ones in which somebody changed what they hold; with `--resume`."""
    from muster.results import checkpoint

    experiment, path = _stopped_run(folder / "run")
    content, members = path.read_bytes(), _members(path)
    tree = json.loads(members["tree.json"])
    kept = folder / "kept"
    shutil.copytree(folder / "run", kept)

    def attempt(rng: random.Random) -> None:
        match rng.randrange(10):
            case 0 | 1 | 2:
                path.write_bytes(changed_bytes(rng, content))
            case 3:
                path.write_bytes(_packed(members | {"arrays.bin": changed_bytes(rng, members["arrays.bin"])}))
            case 4:
                bomb = {"tree.json": members["tree.json"], "arrays.bin": bytes(300_000_000)}
                path.write_bytes(_packed(bomb if rng.random() < 0.05 else {}, zipfile.ZIP_DEFLATED))
            case 5:
                path.write_bytes(_packed(members | {"tree.json": deep(rng.choice("[{"), 100_000).encode()}))
            case _:
                text = json.dumps(changed_tree(rng, tree, tuple(v for v in NASTY if not isinstance(v, bytes))))
                path.write_bytes(_packed(members | {"tree.json": text.encode()}))
        if rng.random() < 0.5:
            checkpoint.load(path, experiment.fingerprint)
            return
        try:
            muster.run(experiment, workers=0, out=folder / "run", resume=True)
        finally:
            shutil.rmtree(folder / "run")
            shutil.copytree(kept, folder / "run")

    return attempt


def store_rows(folder: Path) -> Attempt:
    """A database in which cells, or bytes of the file, are others: read, shown, compared and resumed."""
    from muster.results.store import Store

    experiment, _ = _stopped_run(folder / "run")
    path, kept = folder / "run" / "muster.db", folder / "kept"
    with Store(folder / "run") as store:
        store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(folder / "run", kept)
    with sqlite3.connect(path) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    nasty = tuple(v for v in NASTY if not isinstance(v, list | dict | bool) and "\ud800" not in str(v))
    nasty = tuple(v for v in nasty if type(v) is not int or abs(v) < 2**63)
    texts = (*nasty, "[]", "{}", "[[1]]", "null", "[1,2,3]", '{"a": [1]}', deep("["), zlib.compress(bytes(10**8)))

    def change_a_cell(rng: random.Random) -> None:
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            table = rng.choice([name for name in tables if not name.startswith("sqlite_")])
            described = database.execute(f"PRAGMA table_info({table})").fetchall()
            columns, keys = [row[1] for row in described], [row[1] for row in described if row[5]]
            column, value = rng.choice(columns), rng.choice(texts)
            rows = database.execute(f"SELECT {', '.join(keys)} FROM {table} ORDER BY {', '.join(keys)}").fetchall()
            where = " AND ".join(f"{key} = ?" for key in keys)
            try:
                if rows:
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *rng.choice(rows)))
            except sqlite3.Error:
                return  # the database itself refuses it
        database.close()

    def attempt(rng: random.Random) -> None:
        if rng.random() < 0.25:
            path.write_bytes(changed_bytes(rng, path.read_bytes()))
        else:
            change_a_cell(rng)
        try:
            _read_everything(folder / "run")
            muster.run(experiment, workers=0, out=folder / "run", resume=True)
        finally:
            shutil.rmtree(folder / "run")
            shutil.copytree(kept, folder / "run")

    return attempt


def _read_everything(folder: Path) -> None:
    from muster.results.store import Store

    with Store(folder) as store:
        for run in store.runs():
            store.events(run)
            store.metric_names(run)
            if run.done:
                result = store.result(run)
                result.summary()
                assert isinstance(repr(result), str)


# --- messages ------------------------------------------------------------------------------------------------


def wire_messages(folder: Path) -> Attempt:
    """Orders, answers, introductions and evaluations, as records and as the bytes of vectors."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from muster.engine.task import ClientTask, Place
    from muster.flower import wire
    from muster.flower.allowlist import parse
    from muster.signals.losses import Loss

    task = ClientTask.of("train", 0, Place(1, 0, 0), lr=0.1, signals=(Loss(),))
    order = wire.Order("abc", "partition-id=0", task, challenge="c").to_fields()
    fields = {
        "order": order,
        "introduction": wire.Introduction("name=a", 10, 2).to_fields(),
        "measured": wire.Measured({"loss": np.ones(1)}).to_fields(),
        "scores": wire.Scores(np.array([1, 2, 3, 4]), 0.5).to_fields(),
    }
    vector = wire.array_record({wire.MODEL: np.arange(7, dtype=np.float32)})
    key = "partition-id=0 ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTY\n"
    kinds = (int, float, str, bytes, bool)
    flat = tuple(v for v in NASTY if isinstance(v, kinds) and (type(v) is not int or abs(v) < 2**63))

    def record(rng: random.Random, kind: str) -> ConfigRecord:
        changed = changed_tree(rng, {"version": wire.VERSION, **fields[kind]}, (*flat, [1, 2], deep("[", 2000)))
        made = ConfigRecord()
        for name, value in changed.items():
            try:
                made[name] = value
            except (TypeError, ValueError):  # Flower itself does not take it
                continue
        return made

    def attempt(rng: random.Random) -> None:
        match rng.randrange(6):
            case 0:
                content = RecordDict({wire.RECORD: record(rng, "order")})
                wire.Order.from_record(wire.record_of(content), "train", 10)
            case 1:
                wire.Introduction.from_content(RecordDict({wire.RECORD: record(rng, "introduction")}))
            case 2:
                wire.Measured.from_record(record(rng, "measured"), {"loss": 1})
            case 3:
                wire.Scores.from_record(record(rng, "scores"), 2, 0, 10)
            case 4:
                whole = vector[wire.MODEL]
                shape, dtype = (
                    rng.choice(((7,), (7,), (7,), (2**40,), (-7,), ())),
                    rng.choice(("float32", "object")),
                )
                array = Array(dtype, shape, whole.stype, changed_bytes(rng, whole.data))
                wire.arrays_of(RecordDict({wire.ARRAYS: ArrayRecord({wire.MODEL: array})}), [wire.MODEL], 7)
            case 5:
                parse(changed_bytes(rng, key.encode()).decode(errors="surrogateescape"), "a list")

    return attempt


# --- data ----------------------------------------------------------------------------------------------------


def traces(folder: Path) -> Attempt:
    from muster.world import traces as reader

    devices = [
        {"id": n, "ms_per_sample": 3.5, "kbps": 900, "active": [0, 50], "inactive": [20, 70], "finish": 100}
        for n in range(3)
    ]
    path = folder / "trace.json"
    plain = tuple(v for v in NASTY if not isinstance(v, bytes))

    def attempt(rng: random.Random) -> None:
        if rng.random() < 0.4:
            path.write_bytes(changed_bytes(rng, json.dumps(devices).encode()))
        elif rng.random() < 0.02:
            path.write_text(deep("[", 100_000))
        else:
            path.write_text(json.dumps(changed_tree(rng, devices, plain)), encoding="utf-8")
        (reader.speeds if rng.random() < 0.5 else reader.sessions)(str(path))

    return attempt


def own_tables(folder: Path) -> Attempt:
    """Tables and arrays of users: odd types, lengths, values, columns."""
    import pandas as pd

    from muster.data.own import from_arrays, from_pandas

    columns: dict[str, list[Any]] = {
        "age": [1.0, 2.0, 3.0, 4.0] * 3,
        "dose": [5, 6, 7, 8] * 3,
        "ill": [0, 1] * 6,
        "clinic": ["a", "b", "c"] * 4,
    }
    whole = tuple(value for value in NASTY if "\ud800" not in str(value))  # pandas itself does not take it

    def attempt(rng: random.Random) -> None:
        changed = changed_tree(rng, columns, whole)
        if rng.random() < 0.5:
            options = {"test_share": rng.choice((0.2, 0.2, *NASTY))}
            from_arrays(changed.get("age"), changed.get("ill"), clients=changed.get("clinic"), **options)
            return
        lengths = {len(value) for value in changed.values() if isinstance(value, list)}
        if len(lengths) != 1 or not all(isinstance(value, list) for value in changed.values()):
            return  # pandas itself does not make a table of it
        from_pandas(pd.DataFrame(changed), label="ill", client=rng.choice(("clinic", None)))

    return attempt


def sample_files(folder: Path) -> Attempt:
    """A folder of pictures and arrays, one of which is damaged."""
    from PIL import Image

    from muster.data.own import from_folder

    whole: dict[str, bytes] = {}
    for suffix in ("npy", "png"):
        file = io.BytesIO()
        if suffix == "npy":
            np.save(file, np.zeros((3, 4, 4), dtype=np.float32))
        else:
            Image.new("RGB", (4, 4)).save(file, "png")
        whole[suffix] = file.getvalue()
        for client in "ab":
            for label in "xy":
                place = folder / suffix / client / label
                place.mkdir(parents=True)
                for number in range(3):
                    (place / f"{number}.{suffix}").write_bytes(whole[suffix])

    def attempt(rng: random.Random) -> None:
        suffix = rng.choice(("npy", "png"))
        path = folder / suffix / "a" / "x" / f"0.{suffix}"
        path.write_bytes(changed_bytes(rng, whole[suffix]))
        from_folder(folder / suffix)

    return attempt


TARGETS: dict[str, Callable[[Path], Attempt]] = {
    "experiment-files": experiment_files,
    "sweep-files": sweep_files,
    "experiment-values": experiment_values,
    "checkpoints": checkpoints,
    "store-rows": store_rows,
    "wire-messages": wire_messages,
    "traces": traces,
    "own-tables": own_tables,
    "sample-files": sample_files,
}
