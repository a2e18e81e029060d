"""CIFAR's own files: pickled dicts of arrays, read by an unpickler that can make nothing but arrays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muster.core.errors import DataError
from muster.data.cache import Arrays

#: All that a pickled NumPy array refers to, under the module names of old and new NumPy.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def read_pickle(path: Path) -> dict[bytes, Any]:
    """A CIFAR file's content, without running any code that it might carry."""
    try:
        with path.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except (OSError, EOFError, ValueError, ImportError, pickle.UnpicklingError) as problem:
        raise DataError(f"cannot read {path}: {problem}", fix="fetch the file again") from problem
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}", expected="the dict of a CIFAR file")
    return {key if isinstance(key, bytes) else str(key).encode(): value for key, value in content.items()}


def read_batches(train: Sequence[Path], test: Sequence[Path], label: bytes) -> Arrays:
    """Pictures (n, 3, 32, 32) and labels of both splits."""
    arrays: Arrays = {}
    for split, files in (("train", train), ("test", test)):
        batches = [read_pickle(file) for file in files]
        absent = [key.decode() for key in (b"data", label) if any(key not in batch for batch in batches)]
        if absent:
            raise DataError(f"{files[0].parent}: a {split} file has no '{absent[0]}'", fix="fetch the files again")
        arrays[f"{split}_features"] = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
        arrays[f"{split}_labels"] = np.concatenate([np.asarray(batch[label], dtype=np.int64) for batch in batches])
    return arrays
