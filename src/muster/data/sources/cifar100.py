"""CIFAR-100 (Krizhevsky 2009): 32 × 32 colour pictures of 100 kinds of things, in 20 superclasses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import labelled
from muster.data.sources._cifar_pickle import read_batches, read_pickle
from muster.data.sources._parquet import class_names, find_parquet, integers, of_split, read_picture_parquet
from muster.data.sources.base import sources

_FILES = ("train", "test", "meta")


def _find_pickles(folder: Path) -> Sequence[Path]:
    for place in (folder, folder / "cifar-100-python"):
        files = [place / name for name in _FILES]
        if all(file.is_file() for file in files):
            return files
    return ()


def _read_pickles(files: Sequence[Path], new: NewArray) -> Arrays:
    train, test, meta = files
    arrays = read_batches([train], [test], b"fine_labels")
    for split, file in (("train", train), ("test", test)):
        arrays[f"{split}_coarse"] = np.asarray(read_pickle(file)[b"coarse_labels"], dtype=np.int64)
    spelt = read_pickle(meta)
    arrays["class_names"] = np.array([name.decode() for name in spelt[b"fine_label_names"]])
    arrays["coarse_names"] = np.array([name.decode() for name in spelt[b"coarse_label_names"]])
    return arrays


def _read_parquet(files: Sequence[Path], new: NewArray) -> Arrays:
    arrays = read_picture_parquet(files, new, mode="RGB", label="fine_label")
    for split in ("train", "test"):
        arrays[f"{split}_coarse"] = integers(of_split(files, split), "coarse_label")
    names = class_names(files[0], "coarse_label")
    return arrays | ({"coarse_names": np.array(names)} if names else {})


CIFAR100 = DataFiles(
    "cifar100",
    needs="the folder cifar-100-python of the Python version, or Parquet files with the columns img, fine_label "
    "and coarse_label",
    layouts={
        "parquet": FileLayout(find_parquet, _read_parquet),
        "pickle": FileLayout(_find_pickles, _read_pickles),
    },
    hub="uoft-cs/cifar100",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
)


@sources.register("cifar100")
def cifar100(coarse: bool = False, data_dir: str | None = None) -> Dataset:
    """CIFAR-100: 50,000 + 10,000 colour 32 × 32 pictures of 100 kinds of things.

    With `coarse`, the labels are the 20 superclasses.
    """
    arrays, folder = CIFAR100.arrays(data_dir)
    fallback = tuple(str(number) for number in range(20 if coarse else 100))
    if coarse:
        kept = {f"{split}_features": arrays[f"{split}_features"] for split in ("train", "test")}
        kept |= {f"{split}_labels": arrays[f"{split}_coarse"] for split in ("train", "test")}
        arrays = kept | {"class_names": arrays.get("coarse_names", np.array(fallback))}
    normalisation = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), scale=1 / 255)
    return labelled("cifar100", arrays, folder, normalisation, fallback)
