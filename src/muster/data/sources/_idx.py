"""The IDX format of the MNIST family, gzipped or not."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.errors import DataError
from muster.data.cache import Arrays, NewArray

_UNSIGNED_BYTES = 0x08
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def find_idx(folder: Path) -> Sequence[Path]:
    """The four files of MNIST's layout (also spelt `train-images.idx3-ubyte`), or nothing when one is missing."""
    found = []
    for name in FILES:
        spellings = [name, name.replace("-idx", ".idx")]
        choices = [folder / (spelling + ending) for spelling in spellings for ending in ("", ".gz")]
        present = [path for path in choices if path.is_file()]
        if not present:
            return ()
        found.append(present[0])
    return found


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """An IDX file of unsigned bytes as an array."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            content = stream.read()
    except (OSError, EOFError) as problem:
        raise DataError(f"cannot read {path}: {problem}", fix="fetch the file again") from problem
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DataError(f"{path} is not an IDX file of unsigned bytes", fix="fetch the file again")
    header = 4 + 4 * content[3]
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], dtype=">u4"))
    if len(content) - header != int(np.prod(shape)):
        raise DataError(
            f"{path} holds {len(content) - header} values",
            expected=f"the {shape} of its header",
            fix="fetch it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def read_idx_files(files: Sequence[Path], new: NewArray) -> Arrays:
    """Images (n, 1, height, width) and labels of both splits."""
    arrays: Arrays = {}
    for split, (images_file, labels_file) in (("train", files[:2]), ("test", files[2:])):
        images, labels = read_idx(images_file), read_idx(labels_file)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(f"{images_file} {images.shape} and {labels_file} {labels.shape} do not fit together")
        arrays[f"{split}_features"] = images[:, None]
        arrays[f"{split}_labels"] = labels.astype(np.int64)
    return arrays
