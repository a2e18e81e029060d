"""FEMNIST (Caldas et al. 2018, LEAF): handwritten characters, each with the person who wrote it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from muster.core.errors import DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources._leaf import find_leaf, leaf_split, leaf_users
from muster.data.sources._parquet import column, fill_from_parquet, find_unsplit_parquet, integers
from muster.data.sources.base import sources

CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
#: Share of every writer's characters that is kept for testing, where the files have no test split.
TEST_FRACTION = 0.1


def _read_leaf(files: Sequence[Path], new: NewArray) -> Arrays:
    writers: dict[str, int] = {}
    parts: dict[str, list[tuple[Any, Any, Any]]] = {"train": [], "test": [], "all": []}
    for file in files:
        for user, x, y in leaf_users(file):
            images = np.rint(np.asarray(x, dtype=np.float32) * 255).astype(np.uint8)
            if images.shape != (len(y), 784):
                raise DataError(
                    f"{file}: writer {user} has samples of shape {images.shape[1:]}", expected="(784,)"
                )
            labels = np.asarray(y, dtype=np.int64)
            owner = np.full(len(y), writers.setdefault(user, len(writers)))
            parts[leaf_split(file)].append((images.reshape(-1, 1, 28, 28), labels, owner))
    joined = {
        split: [np.concatenate(arrays) for arrays in zip(*part, strict=True)]
        for split, part in parts.items()
        if part
    }
    if "all" in joined:
        images, labels, owners = joined["all"]
        return _split(images, labels, owners, list(writers))
    arrays: Arrays = {"owner_names": np.array(list(writers))}
    for split, (images, labels, owners) in joined.items():
        arrays |= {f"{split}_features": images, f"{split}_labels": labels, f"{split}_owners": owners}
    return arrays


def _read_parquet(files: Sequence[Path], new: NewArray) -> Arrays:
    writers = pc.dictionary_encode(column(files, "writer_id")).combine_chunks()
    owners = np.asarray(writers.indices.to_numpy(), dtype=np.int64)
    names = [str(name) for name in writers.dictionary.to_pylist()]
    return _split(fill_from_parquet(_in_memory, "all", files, "L"), integers(files, "character"), owners, names)


def _in_memory(key: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory for what is not kept in its original form."""
    return np.empty(shape, dtype)


def _split(images: Any, labels: Any, owners: Any, names: list[str]) -> Arrays:
    chosen = held_out(owners, TEST_FRACTION)
    arrays: Arrays = {"owner_names": np.array(names)}
    for split, part in (("train", ~chosen), ("test", chosen)):
        arrays[f"{split}_features"] = images[part]
        arrays[f"{split}_labels"] = labels[part]
        arrays[f"{split}_owners"] = owners[part]
    return arrays


FEMNIST = DataFiles(
    "femnist",
    needs="LEAF's JSON files in train/ and test/ (or all_data/), or Parquet files with the columns image, "
    "writer_id and character",
    layouts={
        "leaf": FileLayout(find_leaf, _read_leaf),
        "parquet": FileLayout(find_unsplit_parquet, _read_parquet),
    },
    hub="flwrlabs/femnist",
    home="LEAF's scripts (https://leaf.cmu.edu)",
)


@sources.register("femnist")
def femnist(data_dir: str | None = None) -> Dataset:
    """FEMNIST: grey 28 × 28 pictures of 62 handwritten characters; natural client = writer.

    Files without a test split get one: a tenth of every writer's characters.
    """
    arrays, folder = FEMNIST.arrays(data_dir)
    return labelled("femnist", arrays, folder, Normalisation(scale=1 / 255), CLASS_NAMES)
