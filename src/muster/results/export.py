"""Runs of a store as tables in Parquet or CSV files, one row per round, selected client, report or event.

| file | one row for |
|---|---|
| runs | a run: config (JSON), status, versions, times |
| rounds | a round: metrics and costs |
| selections | a client in a training: its weight, and whether its update was used |
| reports | a number that a client reported |
| client_accuracy | a client in an evaluation, on its own test data |
| events | something that happened: started, resumed, an update refused, … |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from muster.core.errors import OutputError
from muster.results.store import Run, Store
from muster.results.store.codec import COST_COLUMNS
from muster.server.ledger import Costs
from muster.server.record import RoundRecord

Format: TypeAlias = Literal["parquet", "csv"]
#: Column → values, all of the same length.
Columns: TypeAlias = dict[str, Any]

_WHOLE_COSTS = tuple(name for name in COST_COLUMNS if not name.endswith("seconds"))
_SCHEMAS = {
    "selections": {
        "run": pa.string(),
        "round": pa.int64(),
        "training": pa.int64(),
        "client": pa.int64(),
        "weight": pa.float64(),
        "used": pa.bool_(),
    },
    "reports": {
        "run": pa.string(),
        "round": pa.int64(),
        "exchange": pa.int64(),
        "trained": pa.bool_(),
        "signal": pa.string(),
        "client": pa.int64(),
        "position": pa.int64(),
        "value": pa.float32(),
    },
    "client_accuracy": {
        "run": pa.string(),
        "round": pa.int64(),
        "client": pa.int64(),
        "accuracy": pa.float32(),
    },
    "events": {
        "run": pa.string(),
        "time": pa.float64(),
        "round": pa.int64(),
        "kind": pa.string(),
        "training": pa.int64(),
        "client": pa.int64(),
        "detail": pa.string(),
    },
}


def export(store: Store, runs: Sequence[Run], folder: Path, form: Format = "parquet") -> list[Path]:
    """Write the tables of `runs` into a folder; returns the files. Only one run at a time is in memory.

    The files get their names when all are whole: nobody takes half a table for one, and earlier files stay.
    """
    schemas = {"rounds": _rounds_schema(store, runs), **_SCHEMAS}
    paths = {name: folder / f"{name}.{form}" for name in ("runs", *schemas)}
    unfinished = {name: path.with_name(f".{path.name}.{os.getpid()}.tmp") for name, path in paths.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _export(store, runs, unfinished, schemas, form)
        for name, path in paths.items():
            unfinished[name].replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder}: {error.strerror or error}", fix="choose another folder"
        ) from error
    finally:
        for path in unfinished.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return list(paths.values())


def _export(
    store: Store, runs: Sequence[Run], paths: dict[str, Path], schemas: dict[str, dict[str, Any]], form: Format
) -> None:
    make_writer = _WRITERS[form]
    listing = pa.Table.from_pylist([_facts(run) for run in runs])
    with make_writer(paths["runs"], listing.schema) as writer:
        writer.write_table(listing)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(make_writer(paths[name], pa.schema(schema)))
            for name, schema in schemas.items()
        }
        for run in runs:
            rows = store.rows_of_run(run.id, run.done)
            records = rows.records()
            tables: dict[str, Iterator[Columns]] = {
                "rounds": _rounds(records, rows.costs(), list(schemas["rounds"])),
                "selections": _selections(records),
                "reports": _reports(records),
                "client_accuracy": _client_accuracy(records),
                "events": _events(store, run),
            }
            for name, chunks in tables.items():
                _write(writers[name], schemas[name], run.fingerprint, list(chunks))


def _rounds_schema(store: Store, runs: Sequence[Run]) -> dict[str, Any]:
    metrics = dict.fromkeys(name for run in runs for name in store.metric_names(run))
    costs = {name: pa.int64() if name in _WHOLE_COSTS else pa.float64() for name in COST_COLUMNS}
    return {"run": pa.string(), "round": pa.int64(), **dict.fromkeys(metrics, pa.float64()), **costs}


def _facts(run: Run) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(run).items() if key not in ("id", "pid", "host")}
    return {
        **facts,
        "method": run.method,
        "sweeps": json.dumps(run.sweeps),
        "config": json.dumps(run.config),
        "environment": json.dumps(run.environment),
    }


def _rounds(records: list[RoundRecord], costs: list[Costs], columns: list[str]) -> Iterator[Columns]:
    rows = [
        {"round": record.round, **record.metrics, **asdict(cost)}
        for record, cost in zip(records, costs, strict=True)
    ]
    yield {name: [row.get(name) for row in rows] for name in columns if name != "run"}


def _selections(records: list[RoundRecord]) -> Iterator[Columns]:
    for record in records:
        for at, training in enumerate(record.trainings):
            clients = [*training.clients, *training.left_out]
            yield {
                "round": [record.round] * len(clients),
                "training": [at] * len(clients),
                "client": clients,
                "weight": [*training.weights, *([0.0] * len(training.left_out))],
                "used": [True] * len(training.clients) + [False] * len(training.left_out),
            }


def _reports(records: list[RoundRecord]) -> Iterator[Columns]:
    for record in records:
        for report in record.reports:
            for signal, values in report.values.items():
                width = values.shape[1] if values.ndim > 1 else 1
                yield {
                    "round": np.full(values.size, record.round),
                    "exchange": np.full(values.size, report.exchange),
                    "trained": np.full(values.size, report.trained),
                    "signal": [signal] * values.size,
                    "client": np.repeat(report.clients, width),
                    "position": np.tile(np.arange(width), len(report.clients)),
                    "value": values.ravel(),
                }


def _client_accuracy(records: list[RoundRecord]) -> Iterator[Columns]:
    for record in records:
        if record.client_accuracy is not None:
            tested = np.flatnonzero(~np.isnan(record.client_accuracy))
            yield {
                "round": np.full(len(tested), record.round),
                "client": tested,
                "accuracy": record.client_accuracy[tested],
            }


def _events(store: Store, run: Run) -> Iterator[Columns]:
    events = [asdict(event) for event in store.events(run)]
    yield {name: [event[name] for event in events] for name in _SCHEMAS["events"] if name != "run"}


def _write(writer: Any, schema: dict[str, Any], run: str, chunks: list[Columns]) -> None:
    tables = []
    for chunk in chunks:
        arrays = [pa.array([run] * len(chunk["round"]), pa.string())]
        arrays += [pa.array(chunk[name], kind) for name, kind in schema.items() if name != "run"]
        tables.append(pa.Table.from_arrays(arrays, schema=pa.schema(schema)))
    if tables:
        writer.write_table(pa.concat_tables(tables))


_WRITERS: dict[Format, Callable[[Path, Any], Any]] = {
    "parquet": lambda path, schema: pyarrow.parquet.ParquetWriter(path, schema, compression="zstd"),
    "csv": pyarrow.csv.CSVWriter,
}
