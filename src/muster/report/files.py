"""Results as plain files: CSV, JSON and NPY, readable without Muster."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.errors import OutputError

if TYPE_CHECKING:
    from muster.result import Result


def save_result(result: Result, folder: Path) -> None:
    """metrics.csv, selections.json, summary.json, config.json and parameters.npy."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / "metrics.csv", result.metrics)
        write_json(folder / "selections.json", [record.state_dict() for record in result.records])
        write_json(folder / "summary.json", result.summary())
        write_json(folder / "config.json", result.config)
        np.save(folder / "parameters.npy", result.parameters, allow_pickle=False)
    except OSError as error:
        raise OutputError(
            f"cannot write results to {folder}: {error.strerror or error}",
            fix="free some space, then --resume: the checkpoint holds all rounds",
        ) from error


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
