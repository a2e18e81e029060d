"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28 × 28 grey pictures of ten kinds of clothing."""

from __future__ import annotations

from functools import partial

from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, Layout
from muster.data.sources._build import labelled
from muster.data.sources._idx import FILES, find_idx, read_idx_files
from muster.data.sources._parquet import find_parquet, read_picture_parquet
from muster.data.sources.base import sources

CLASS_NAMES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
FASHION_MNIST = DataFiles(
    "fashion-mnist",
    needs=f"the IDX files {', '.join(FILES)} (.gz or not), or Parquet files with the columns image and label",
    layouts={
        "idx": Layout(find_idx, read_idx_files),
        "parquet": Layout(find_parquet, partial(read_picture_parquet, mode="L")),
    },
)


@sources.register("fashion-mnist")
def fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 grey 28 × 28 pictures of ten kinds of clothing."""
    arrays, folder = FASHION_MNIST.arrays(data_dir)
    normalisation = Normalisation(mean=(0.2860,), std=(0.3530,), scale=1 / 255)
    return labelled("fashion-mnist", arrays, folder, normalisation, CLASS_NAMES)
