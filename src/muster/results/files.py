"""Results as plain files, written and read: CSV, JSON and NPY, which need no Muster."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muster.core.errors import DataError, OutputError
from muster.core.parameters import ParameterSpec
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.record import RoundRecord
from muster.server.result import CUMULATED, Result

#: The file that makes a folder a result's.
SUMMARY = "summary.json"


def save_result(result: Result, folder: Path) -> None:
    """metrics.csv, selections.json, ledger.json, summary.json, config.json and parameters.npy."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / "metrics.csv", result.metrics)
        write_json(folder / "selections.json", [record.state_dict() for record in result.records])
        write_json(folder / "ledger.json", _ledger_data(result))
        write_json(folder / SUMMARY, result.summary())
        write_json(folder / "config.json", result.config)
        np.save(folder / "parameters.npy", result.parameters, allow_pickle=False)
    except OSError as error:
        raise OutputError(
            f"cannot write results to {folder}: {error.strerror or error}",
            fix="free some space, then --resume: the checkpoint holds all rounds",
        ) from error


def _ledger_data(result: Result) -> dict[str, Any]:
    rounds = [asdict(costs) for costs in result.ledger.rounds]
    return {"clients": result.history.clients, "rounds": rounds, "disclosed": result.ledger.disclosed}


def holds_result(folder: Path) -> bool:
    return (folder / SUMMARY).is_file()


def load_result(folder: Path) -> Result:
    """A result from its plain files, which any later version can read.

    They do not have everything: what individual clients reported, and the layout of the model's parameters, are
    missing.
    """
    try:
        summary = _read_json(folder / SUMMARY)
        records = [_record(row) for row in _read_json(folder / "selections.json")]
        ledger, clients = _ledger(folder, summary)
        return Result(
            parameters=np.load(folder / "parameters.npy", allow_pickle=False),
            records=records,
            ledger=ledger,
            history=_history(records, clients),
            spec=ParameterSpec(()),
            complete=bool(summary["complete"]),
            name=str(summary["name"]),
            config=_read_json(folder / "config.json"),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} does not hold a readable result ({error})", expected="the files that a run has written"
        ) from error


def _record(row: dict[str, Any]) -> RoundRecord:
    record = RoundRecord.from_state(row)
    record.metrics = {name: math.nan if value is None else value for name, value in record.metrics.items()}
    return record


def _ledger(folder: Path, summary: dict[str, Any]) -> tuple[Ledger, int]:
    """The ledger and the number of clients, 0 where it is not known.

    Folders from before there was a ledger.json know some things only in total: these are counted in the last
    round.
    """
    ledger, path = Ledger(), folder / "ledger.json"
    if path.exists():
        state = _read_json(path)
        ledger.load_state_dict(state)
        return ledger, int(state["clients"])
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        work = np.array([[float(row.get(name, 0)) for name in CUMULATED] for row in csv.DictReader(file)])
    for step in np.diff(work, axis=0, prepend=0).tolist():
        ledger.rounds.append(Costs(**dict(zip(CUMULATED, step, strict=True))))
    ledger.rounds[-1].server_seconds = summary["costs"]["server_seconds"]
    ledger.disclosed = [{} for _ in ledger.rounds[1:]] + [summary.get("disclosed", {})]
    return ledger, int(_read_json(folder / "config.json").get("partition", {}).get("clients", 0))


def _history(records: Sequence[RoundRecord], clients: int) -> History:
    """Who took part, from the records; empty where not even the number of clients is known."""
    history = History(clients)
    for record in records if clients else ():
        for training in record.trainings:
            history.trained(np.array(training.clients, dtype=np.int64), record.round - 1)
            history.failed(np.array([*training.failed, *training.rejected], dtype=np.int64))
    return history


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_rows(path: Path, rows: list[dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, content: object) -> None:
    path.write_text(to_json(content, indent=1), encoding="utf-8")


def to_json(content: object, indent: int | None = None) -> str:
    """JSON as every reader understands it: what was not measured (NaN) and infinities are null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    match content:
        case float():
            return content if math.isfinite(content) else None
        case dict():
            return {key: _finite(value) for key, value in content.items()}
        case list() | tuple():
            return [_finite(item) for item in content]
    return content
