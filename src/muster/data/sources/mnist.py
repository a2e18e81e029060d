"""MNIST (LeCun, Cortes and Burges 1998): 28 × 28 grey pictures of handwritten digits."""

from __future__ import annotations

from functools import partial

from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, Layout
from muster.data.sources._build import labelled
from muster.data.sources._idx import FILES, find_idx, read_idx_files
from muster.data.sources._parquet import find_parquet, read_picture_parquet
from muster.data.sources.base import sources

MNIST = DataFiles(
    "mnist",
    needs=f"the IDX files {', '.join(FILES)} (.gz or not), or Parquet files with the columns image and label",
    layouts={
        "idx": Layout(find_idx, read_idx_files),
        "parquet": Layout(find_parquet, partial(read_picture_parquet, mode="L")),
    },
)


@sources.register("mnist")
def mnist(data_dir: str | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 grey 28 × 28 pictures of handwritten digits."""
    arrays, folder = MNIST.arrays(data_dir)
    normalisation = Normalisation(mean=(0.1307,), std=(0.3081,), scale=1 / 255)
    return labelled("mnist", arrays, folder, normalisation, tuple("0123456789"))
