"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28 × 28 grey pictures of ten kinds of clothing."""

from __future__ import annotations

from functools import partial

from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.packages import Package
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
_DIGESTS = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
FASHION_MNIST = DataFiles(
    "fashion-mnist",
    needs=f"the IDX files {', '.join(FILES)} (.gz or not), or Parquet files with the columns image and label",
    layouts={
        "idx": FileLayout(find_idx, read_idx_files),
        "parquet": FileLayout(find_parquet, partial(read_picture_parquet, mode="L")),
    },
    hub="zalando-datasets/fashion_mnist",
    package=Package(
        command="apt-get download dataset-fashion-mnist",
        archive="dataset-fashion-mnist_*.deb",
        members="usr/share/datasets/fashion-mnist/*-ubyte.gz",
        size=30_900_652,
        digests=dict(zip(FILES, _DIGESTS, strict=True)),
    ),
    home="https://github.com/zalandoresearch/fashion-mnist",
)


@sources.register("fashion-mnist")
def fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 grey 28 × 28 pictures of ten kinds of clothing."""
    arrays, folder = FASHION_MNIST.arrays(data_dir)
    normalisation = Normalisation(mean=(0.2860,), std=(0.3530,), scale=1 / 255)
    return labelled("fashion-mnist", arrays, folder, normalisation, CLASS_NAMES)
