"""CIFAR-10 (Krizhevsky 2009): 32 × 32 colour pictures of ten kinds of things."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import labelled
from muster.data.sources._cifar_pickle import read_batches
from muster.data.sources._parquet import find_parquet, read_picture_parquet
from muster.data.sources.base import sources

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def _find_pickles(folder: Path) -> Sequence[Path]:
    for place in (folder, folder / "cifar-10-batches-py"):
        files = [place / name for name in [*_BATCHES, "test_batch"]]
        if all(file.is_file() for file in files):
            return files
    return ()


def _read_pickles(files: Sequence[Path], new: NewArray) -> Arrays:
    return read_batches(files[:-1], files[-1:], b"labels")


CIFAR10 = DataFiles(
    "cifar10",
    needs="the folder cifar-10-batches-py of the Python version, or Parquet files with the columns img and label",
    layouts={
        "parquet": FileLayout(find_parquet, partial(read_picture_parquet, mode="RGB")),
        "pickle": FileLayout(_find_pickles, _read_pickles),
    },
    hub="uoft-cs/cifar10",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
)


@sources.register("cifar10")
def cifar10(data_dir: str | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour 32 × 32 pictures of ten kinds of things."""
    arrays, folder = CIFAR10.arrays(data_dir)
    normalisation = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), scale=1 / 255)
    return labelled("cifar10", arrays, folder, normalisation, CLASS_NAMES)
