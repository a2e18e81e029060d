"""MNIST, Fashion-MNIST and coloured MNIST, from IDX and Parquet files."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.data.sources import sources
from muster.data.sources._idx import read_idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return {
        "train": (rng.integers(0, 256, (20, 28, 28), dtype=np.uint8), np.arange(20, dtype=np.uint8) % 10),
        "t10k": (rng.integers(0, 256, (6, 28, 28), dtype=np.uint8), np.arange(6, dtype=np.uint8)),
    }


def write_idx(folder, pictures, zipped: bool, dots: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mark = "." if dots else "-"
    for split, (images, labels) in pictures.items():
        for name, array in (
            (f"{split}-images{mark}idx3-ubyte", images),
            (f"{split}-labels{mark}idx1-ubyte", labels),
        ):
            content = idx(array)
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("form", ["zipped", "plain", "dots"])
def test_idx_files(isolated, pictures, name, form):
    write_idx(isolated / name, pictures, zipped=form == "zipped", dots=form == "dots")
    data = sources.build(name, {})
    assert data.train.features.shape == (20, 1, 28, 28)
    assert data.train.features.dtype == np.uint8
    assert (data.train.features[:, 0] == pictures["train"][0]).all()
    assert data.train.labels.dtype == np.int64
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert (data.classes, len(data.class_names)) == (10, 10)
    assert data.normalisation.scale == pytest.approx(1 / 255)
    assert data.origin == str(isolated / name)


def test_parquet_files(isolated, pictures, write_parquet):
    for split, (images, labels) in zip(("train", "test"), pictures.values(), strict=True):
        write_parquet(isolated / f"mnist/{split}-00000-of-00001.parquet", images, label=labels.astype(np.int64))
    data = sources.build("mnist", {})
    assert (data.train.features[:, 0] == pictures["train"][0]).all()
    assert (data.test.features[:, 0] == pictures["t10k"][0]).all()


@pytest.mark.parametrize("damage", ["cut", "magic", "gzip", "counts"])
def test_damaged_idx_files_are_refused(isolated, pictures, damage):
    write_idx(isolated / "mnist", pictures, zipped=damage == "gzip")
    file = isolated / "mnist" / ("train-images-idx3-ubyte" + (".gz" if damage == "gzip" else ""))
    content = file.read_bytes()
    if damage in ("cut", "gzip"):
        file.write_bytes(content[:-9])
    if damage == "magic":
        file.write_bytes(b"\1" + content[1:])
    if damage == "counts":
        (isolated / "mnist/train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, dtype=np.uint8)))
    with pytest.raises(DataError, match="train-images"):
        sources.build("mnist", {})


def test_labels_beyond_the_classes_are_refused(isolated, pictures):
    pictures["t10k"][1][0] = 10
    write_idx(isolated / "mnist", pictures, zipped=False)
    with pytest.raises(DataError, match="0 to 9"):
        sources.build("mnist", {})


def test_read_idx_of_any_dimensions(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx(array))
    assert (read_idx(tmp_path / "a") == array).all()


def test_coloured_mnist(isolated, pictures):
    write_idx(isolated / "mnist", pictures, zipped=False)
    data = sources.build("cmnist", {})
    images, digits = pictures["train"]
    assert data.train.features.shape == (20, 3, 28, 28)
    assert (data.train.labels == (digits >= 5)).all()
    assert data.attribute_values == 2
    for picture, grey, colour in zip(data.train.features, images, data.train.attributes, strict=True):
        assert (picture[colour] == grey).all()
        assert not np.delete(picture, colour, axis=0).any()


def test_colours_are_drawn_as_in_the_authors_code(isolated, pictures):
    """Seed 42 for each split, and within it all pictures of the first class before those of the second."""
    write_idx(isolated / "mnist", pictures, zipped=False)
    data = sources.build("cmnist", {})
    for part in (data.train, data.test):
        flips = iter(np.random.RandomState(42).binomial(1, 0.5, len(part)).tolist())
        drawn = {
            sample: next(flips) for label in (0, 1) for sample in np.flatnonzero(part.labels == label).tolist()
        }
        assert part.attributes.tolist() == [drawn[sample] for sample in range(len(part))]
