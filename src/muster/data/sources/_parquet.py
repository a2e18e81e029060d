"""Parquet files as the Hugging Face hub serves data sets: pictures as encoded bytes, classes as numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from muster.core.arrays import Ints
from muster.core.errors import DataError
from muster.data.cache import Arrays, NewArray
from muster.data.sources._pictures import MARGIN, fill_pictures, picture

PICTURE_COLUMNS = ("img", "image")
_SPLITS = {"train": ("train",), "test": ("test", "valid", "validation", "val")}


def split_of(path: Path) -> str | None:
    """`train` or `test`, from the name of a file (`train-00000-of-00001.parquet`) or its folder (`train/`)."""
    for word in (path.name.split(".")[0].split("-")[0], path.parent.name):
        for split, spellings in _SPLITS.items():
            if word in spellings:
                return split
    return None


def parquet_in(folder: Path) -> list[Path]:
    """Parquet files in a folder or, failing that, in the subfolders in which the hub keeps them.

    No other subfolders: when a user names a folder of many data sets, another's files must not be taken for these.
    """
    choices = ("*.parquet", "data/*.parquet", "plain_text/*.parquet", "default/*.parquet", "default/*/*.parquet")
    return next((files for choice in choices if (files := sorted(folder.glob(choice)))), [])


def find_parquet(folder: Path) -> Sequence[Path]:
    """The Parquet files of a folder (see `parquet_in`) when both splits are there; else nothing."""
    files = parquet_in(folder)
    return files if {split_of(file) for file in files} >= {"train", "test"} else ()


def find_unsplit_parquet(folder: Path) -> Sequence[Path]:
    """The Parquet files of a folder when they have no test split; otherwise nothing."""
    files = parquet_in(folder)
    return files if {split_of(file) for file in files} <= {"train", None} else ()


def of_split(files: Sequence[Path], split: str) -> list[Path]:
    """The files of a split; where there is a real test split, a validation split is not mistaken for it."""
    chosen = [file for file in files if split_of(file) == split]
    exact = [file for file in chosen if split in (file.name.split(".")[0].split("-")[0], file.parent.name)]
    return exact or chosen


def opened(file: Path) -> Any:
    """A Parquet file, or a DataError when it is damaged."""
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as problem:
        raise DataError(f"cannot read {file}: {problem}", fix="fetch the file again") from problem


def columns_of(file: Path) -> list[str]:
    return list(opened(file).schema_arrow.names)


def column(files: Sequence[Path], name: str) -> Any:
    """One column of all files as a pyarrow.ChunkedArray, in the files' order, without gaps."""
    chunks = []
    for file in files:
        if name not in columns_of(file):
            raise DataError(f"{file} has no column '{name}' (it has: {', '.join(columns_of(file))})")
        try:
            chunks += opened(file).read([name])[name].chunks
        except (OSError, pa.ArrowException) as problem:
            raise DataError(f"cannot read {file}: {problem}", fix="fetch the file again") from problem
    values = pa.chunked_array(chunks)
    if values.null_count:
        row = int(values.is_null().to_numpy().argmax())
        raise DataError(f"{files[0].parent}: sample {row} has no '{name}'", fix="fetch the data set again")
    return values


def integers(files: Sequence[Path], name: str, below: int | None = None) -> Ints:
    """A column of whole numbers; with `below`, from 0 to below it: they are places in a list."""
    values = column(files, name)
    found = values.to_numpy()
    if not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"{files[0]}: '{name}' is of the type {values.type}", expected="whole numbers")
    if below is not None and len(found) and not 0 <= found.min() <= found.max() < below:
        raise DataError(
            f"{files[0].parent}: '{name}' goes from {found.min()} to {found.max()}", expected=f"0 to {below - 1}"
        )
    return np.asarray(found, dtype=np.int64)


def class_names(file: Path, name: str) -> list[str]:
    """The class names that the hub keeps in the schema's metadata, or none."""
    metadata = opened(file).schema_arrow.metadata or {}
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    names: list[str] = features.get(name, {}).get("names", [])
    return names


def fill_from_parquet(
    new: NewArray, key: str, files: Sequence[Path], mode: str, size: int | None = None
) -> np.ndarray[Any, Any]:
    """The pictures of all files as (n, channels, height, width), decoded row group by row group.

    Without `size` all pictures must be as large as the first; with it they are scaled and cropped.
    """
    name = _picture_column(files[0])
    rows = sum(opened(file).metadata.num_rows for file in files)
    target, start = None, 0
    for contents in encoded_pictures(files, name):
        if target is None:
            first = picture(contents[0], mode, size, called=f"the first picture of {files[0].parent}")
            target = new(key, (rows, *first.shape), np.uint8)
        fill_pictures(target, contents, margin=None if size is None else MARGIN, start=start)
        start += len(contents)
    if target is None:
        raise DataError(f"{files[0]} is empty", fix="fetch the data set again")
    return target


def _picture_column(file: Path) -> str:
    name = next((c for c in PICTURE_COLUMNS if c in columns_of(file)), None)
    if name is None:
        raise DataError(f"{file} has no pictures", expected=f"a column {' or '.join(PICTURE_COLUMNS)}")
    return name


def encoded_pictures(files: Sequence[Path], name: str) -> Iterator[list[bytes]]:
    """The pictures of a column as they are in the files, some at a time."""
    for file in files:
        try:
            for batch in opened(file).iter_batches(batch_size=2000, columns=[name]):
                values = batch.column(0)
                encoded = values.field("bytes") if pa.types.is_struct(values.type) else values
                yield encoded.to_pylist()
        except (OSError, pa.ArrowException) as problem:
            raise DataError(f"cannot read {file}: {problem}", fix="fetch the file again") from problem


def first_picture(files: Sequence[Path]) -> bytes:
    """The first picture of the files, as it is there."""
    return next(encoded_pictures(files, _picture_column(files[0])))[0]


def read_picture_parquet(files: Sequence[Path], new: NewArray, mode: str, label: str = "label") -> Arrays:
    """Pictures and labels of both splits, with class names where the files carry them."""
    arrays: Arrays = {}
    for split in ("train", "test"):
        chosen = of_split(files, split)
        arrays[f"{split}_features"] = fill_from_parquet(new, f"{split}_features", chosen, mode)
        arrays[f"{split}_labels"] = integers(chosen, label)
    names = class_names(files[0], label)
    return arrays | ({"class_names": np.array(names)} if names else {})
