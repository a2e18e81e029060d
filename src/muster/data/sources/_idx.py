"""The IDX format of the MNIST family, gzipped or not."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.data.cache import Arrays, cached
from muster.data.federated import Dataset, Normalisation, Samples
from muster.data.locate import locate
from muster.errors import DataError

_UNSIGNED_BYTES = 0x08
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
NEEDS = f"the IDX files {', '.join(_FILES.values())} (.gz or not)"


@dataclass(frozen=True)
class IdxFiles:
    """The four files of a data set in MNIST's layout, by the name of the array that they hold."""

    folder: Path
    paths: dict[str, Path]

    @classmethod
    def find(cls, folder: Path) -> IdxFiles | None:
        """The files in a folder (also spelt `train-images.idx3-ubyte`), or None when one is missing."""
        paths = {}
        for key, name in _FILES.items():
            spellings = [name, name.replace("-idx", ".idx")]
            choices = [folder / (spelling + ending) for spelling in spellings for ending in ("", ".gz")]
            present = [path for path in choices if path.is_file()]
            if not present:
                return None
            paths[key] = present[0]
        return cls(folder, paths)


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
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], dtype=">u4"))
    if len(content) - header != int(np.prod(shape)):
        raise DataError(
            f"{path} holds {len(content) - header} values",
            expected=f"the {shape} of its header",
            fix="fetch it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def idx_arrays(name: str, data_dir: str | None, folder_name: str | None = None) -> tuple[Arrays, Path]:
    """Images (n, 1, height, width) and labels of both splits, memory-mapped, and the folder they came from."""
    files = locate(name, IdxFiles.find, needs=NEEDS, data_dir=data_dir, folder_name=folder_name)

    def decode() -> Arrays:
        arrays: Arrays = {}
        for split in ("train", "test"):
            images = read_idx(files.paths[f"{split}_images"])
            labels = read_idx(files.paths[f"{split}_labels"])
            if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
                raise DataError(
                    f"{files.folder}: {split} images {images.shape} and labels {labels.shape} do not fit together"
                )
            arrays[f"{split}_images"] = images[:, None]
            arrays[f"{split}_labels"] = labels.astype(np.int64)
        return arrays

    return cached(folder_name or name, list(files.paths.values()), decode), files.folder


def idx_dataset(
    name: str, data_dir: str | None, normalisation: Normalisation, class_names: tuple[str, ...]
) -> Dataset:
    """A data set in MNIST's layout."""
    arrays, folder = idx_arrays(name, data_dir)
    return Dataset(
        name=name,
        train=Samples(arrays["train_images"], arrays["train_labels"]),
        test=Samples(arrays["test_images"], arrays["test_labels"]),
        classes=len(class_names),
        normalisation=normalisation,
        class_names=class_names,
        origin=str(folder),
    )
