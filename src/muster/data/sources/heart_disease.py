"""Fed-Heart-Disease (Janosi et al. 1988; FLamby, Ogier du Terrail et al. 2022): patients of four hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError, DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources.base import sources

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
#: The last one is the diagnosis: 0 healthy, 1 to 4 ill.
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
#: Left out as in FLamby: outside Cleveland most patients lack them.
LEFT_OUT = ("slope", "ca", "thal")
#: Columns that are names and not amounts, with their values: the first is what the others are told from.
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
MISSING = "?"
_LAYOUT = f"14 numbers with commas between them, '{MISSING}' where one is missing ({', '.join(COLUMNS)})"


def features_of(rows: Floats) -> Floats:
    """patients × 13: amounts in their order, then a column for each value of a category but the first."""
    amounts = [COLUMNS.index(name) for name in COLUMNS[:-1] if name not in (*LEFT_OUT, *CATEGORIES)]
    marks = [
        rows[:, COLUMNS.index(name), None] == np.array(values[1:], dtype=np.float64)
        for name, values in CATEGORIES.items()
    ]
    return np.concatenate([rows[:, amounts], *marks], axis=1)


def complete(rows: Floats) -> Floats:
    """The patients of whom everything is known but what is left out for all."""
    needed = [number for number, name in enumerate(COLUMNS) if name not in LEFT_OUT]
    return rows[~np.isnan(rows[:, needed]).any(axis=1)]


def _find(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("processed.*.data"))


def _read(files: Sequence[Path], new: NewArray, test_fraction: float) -> Arrays:
    folder, by_name = files[0].parent, {file.name: file for file in files}
    rows = list[Floats]()
    for hospital in HOSPITALS:
        name = f"processed.{hospital}.data"
        if name not in by_name:
            raise DataError(
                f"{folder} has no file {name}", expected="one such file for each of the four hospitals"
            )
        known = complete(_table(by_name[name]))
        if not len(known):
            raise DataError(f"{by_name[name]} has no patient of whom enough is known", expected=_LAYOUT)
        rows.append(known)
    owners: Ints = np.repeat(np.arange(len(HOSPITALS)), [len(part) for part in rows])
    joined = np.concatenate(rows)
    features, labels = features_of(joined).astype(np.float32), (joined[:, -1] > 0).astype(np.int64)
    chosen = held_out(2 * owners + labels, test_fraction)
    arrays: Arrays = {"owner_names": np.array(HOSPITALS)}
    for split, part in (("train", ~chosen), ("test", chosen)):
        arrays[f"{split}_features"], arrays[f"{split}_labels"] = features[part], labels[part]
        arrays[f"{split}_owners"] = owners[part]
    return arrays


def _table(file: Path) -> Floats:
    """patients × 14, NaN where a number is missing."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not a table", expected=_LAYOUT) from error
    rows = [_row(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{file} is empty", expected=_LAYOUT)
    return np.array(rows)


def _row(file: Path, number: int, line: str) -> list[float]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(COLUMNS):
        raise DataError(
            f"{file}, line {number} has {len(cells)} columns",
            expected=_LAYOUT,
            fix="get the file again: it is another one, or cut off",
        )
    try:
        row = [np.nan if cell == MISSING else float(cell) for cell in cells]
    except ValueError as error:
        wrong = next(cell for cell in cells if cell != MISSING and not _is_number(cell))
        raise DataError(f"{file}, line {number}: '{wrong}' is not a number", expected=_LAYOUT) from error
    allowed = {**CATEGORIES, **dict.fromkeys(("sex", "fbs", "exang"), (0, 1)), "num": (0, 1, 2, 3, 4)}
    for name, values in allowed.items():
        found = row[COLUMNS.index(name)]
        if not np.isnan(found) and found not in values:
            raise DataError(
                f"{file}, line {number}: '{name}' is {found:g}", expected=" or ".join(map(str, values))
            )
    # Other versions of these files write −9 for what is missing, which is no measurement.
    for name, value in zip(COLUMNS, row, strict=True):
        if np.isinf(value) or (value < 0 and name != "oldpeak"):
            raise DataError(
                f"{file}, line {number}: '{name}' is {value:g}",
                expected=_LAYOUT,
                fix="take UCI's processed files; in others −9 stands for a missing number",
            )
    return row


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


HEART_DISEASE = DataFiles(
    "heart-disease",
    needs="processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and processed.va.data",
    layouts={"uci": FileLayout(_find, _read)},
    home="the UCI Machine Learning Repository's Heart Disease (https://archive.ics.uci.edu/dataset/45/heart+disease)",
)


@sources.register("heart-disease")
def heart_disease(
    test_fraction: float = 0.34,
    standardise: Literal["hospital", "all", "none"] = "hospital",
    data_dir: str | None = None,
) -> Dataset:
    """Fed-Heart-Disease: 740 patients of four hospitals, 13 numbers each, ill or not; natural client = hospital.

    As in FLamby, three columns that most hospitals lack are left out, and then patients with anything missing.
    `test_fraction` of the ill and of the healthy in each hospital are for testing. Columns are standardised with
    the means and deviations of the training patients of each hospital, of all together, or not.
    """
    if not 0.0 < test_fraction < 1.0:
        raise ConfigError(f"bad value for 'data.test_fraction': {test_fraction}", expected="between 0 and 1")
    arrays, folder = HEART_DISEASE.arrays(data_dir, test_fraction=test_fraction)
    normalisation = Normalisation()
    if standardise == "all":
        mean, spread = _moments(arrays["train_features"])
        normalisation = Normalisation(tuple(mean.tolist()), tuple(spread.tolist()))
    elif standardise == "hospital":
        arrays = _by_hospital(arrays)
    return labelled("heart-disease", arrays, folder, normalisation, ("healthy", "ill"))


def _by_hospital(arrays: Arrays) -> Arrays:
    """Features of which those of each hospital have mean 0 and deviation 1 over its training patients."""
    made = dict(arrays)
    for split in ("train", "test"):
        made[f"{split}_features"] = np.array(arrays[f"{split}_features"])
    for hospital in range(len(HOSPITALS)):
        mean, spread = _moments(arrays["train_features"][arrays["train_owners"] == hospital])
        for split in ("train", "test"):
            of_it = arrays[f"{split}_owners"] == hospital
            made[f"{split}_features"][of_it] = (arrays[f"{split}_features"][of_it] - mean) / spread
    return made


def _moments(rows: npt.NDArray[np.floating[Any]]) -> tuple[Floats, Floats]:
    """Mean and deviation of every column. One in which all are alike says nothing: its deviation is taken as 1."""
    known = np.asarray(rows, dtype=np.float64)
    spread = known.std(axis=0, ddof=min(1, len(known) - 1))
    return known.mean(axis=0), np.where(spread > 0, spread, 1.0)
