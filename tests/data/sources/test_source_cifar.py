"""CIFAR-10 and CIFAR-100, from their pickles and from Parquet files."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.data.sources import sources


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_pickle(path, **content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        pickle.dump({key.encode(): value for key, value in content.items()}, stream, protocol=2)


def write_cifar10(folder) -> None:
    for number in range(1, 6):
        write_pickle(folder / f"data_batch_{number}", data=pixels(4, number), labels=[0, 9, 3, number])
    write_pickle(folder / "test_batch", data=pixels(3), labels=[1, 2, 3])


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10_pickles(isolated, inside):
    write_cifar10(isolated / "cifar10" / inside)
    data = sources.build("cifar10", {})
    assert data.train.features.shape == (20, 3, 32, 32)
    assert (data.train.features[4:8].reshape(4, -1) == pixels(4, 2)).all()
    assert data.train.labels[:8].tolist() == [0, 9, 3, 1, 0, 9, 3, 2]
    assert (data.test.features.reshape(3, -1) == pixels(3)).all()


def test_pickles_of_python_2_strings(isolated):
    # Keys of files written by Python 2 are byte strings of another opcode; str keys must work as well.
    write_cifar10(isolated / "cifar10")
    with (isolated / "cifar10/test_batch").open("wb") as stream:
        pickle.dump({"data": pixels(2), "labels": [5, 6]}, stream)
    assert sources.build("cifar10", {}).test.labels.tolist() == [5, 6]


def test_pickles_cannot_run_code(isolated):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(isolated / "owned"),)

    write_cifar10(isolated / "cifar10")
    with (isolated / "cifar10/test_batch").open("wb") as stream:
        pickle.dump({b"data": Attack(), b"labels": []}, stream)
    with pytest.raises(DataError, match="mkdir"):
        sources.build("cifar10", {})
    assert not (isolated / "owned").exists()


def test_incomplete_pickle(isolated):
    write_cifar10(isolated / "cifar10")
    write_pickle(isolated / "cifar10/data_batch_3", data=pixels(2))
    with pytest.raises(DataError, match="no 'labels'"):
        sources.build("cifar10", {})


def test_cifar10_parquet(isolated, write_parquet):
    pictures = pixels(5).reshape(5, 32, 32, 3)
    write_parquet(isolated / "cifar10/plain_text/train-0.parquet", pictures, "img", label=[3, 1, 4, 1, 5])
    write_parquet(isolated / "cifar10/plain_text/test-0.parquet", pictures[:2], "img", label=[9, 2])
    data = sources.build("cifar10", {})
    assert (data.train.features == pictures.transpose(0, 3, 1, 2)).all()
    assert data.train.labels.tolist() == [3, 1, 4, 1, 5]
    assert data.test.labels.tolist() == [9, 2]


def test_parquet_in_several_files_keeps_its_order(isolated, write_parquet):
    pictures = pixels(6).reshape(6, 32, 32, 3)
    for part in range(3):
        rows = slice(2 * part, 2 * part + 2)
        write_parquet(isolated / f"cifar10/train-{part}.parquet", pictures[rows], "img", label=[part, part])
    write_parquet(isolated / "cifar10/test-0.parquet", pictures[:1], "img", label=[0])
    data = sources.build("cifar10", {})
    assert (data.train.features == pictures.transpose(0, 3, 1, 2)).all()
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_damaged_parquet_and_pictures(isolated, write_parquet):
    (isolated / "cifar10").mkdir()
    for split in ("train", "test"):
        (isolated / f"cifar10/{split}.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="cannot read"):
        sources.build("cifar10", {})
    for split in ("train", "test"):
        write_parquet(isolated / f"cifar10/{split}.parquet", image=[b"not a picture"], label=[0])
    with pytest.raises(DataError, match="cannot decode"):
        sources.build("cifar10", {})


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100_pickles(isolated, coarse):
    folder = isolated / "cifar100/cifar-100-python"
    write_pickle(folder / "train", data=pixels(4), fine_labels=[7, 99, 0, 1], coarse_labels=[3, 19, 0, 1])
    write_pickle(folder / "test", data=pixels(2), fine_labels=[5, 6], coarse_labels=[2, 4])
    fine = [f"fine {n}".encode() for n in range(100)]
    write_pickle(folder / "meta", fine_label_names=fine, coarse_label_names=[f"c{n}".encode() for n in range(20)])
    data = sources.build("cifar100", {"coarse": coarse})
    assert data.classes == (20 if coarse else 100)
    assert data.train.labels.tolist() == ([3, 19, 0, 1] if coarse else [7, 99, 0, 1])
    assert data.class_names[2] == ("c2" if coarse else "fine 2")
    assert (data.train.features.reshape(4, -1) == pixels(4)).all()


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100_parquet(isolated, write_parquet, coarse):
    names = {"fine_label": [f"f{n}" for n in range(100)], "coarse_label": [f"c{n}" for n in range(20)]}
    pictures = pixels(2).reshape(2, 32, 32, 3)
    for split in ("train", "test"):
        write_parquet(
            isolated / f"cifar100/{split}-0.parquet",
            pictures,
            "img",
            names,
            fine_label=[98, 1],
            coarse_label=[11, 0],
        )
    data = sources.build("cifar100", {"coarse": coarse})
    assert data.train.labels.tolist() == ([11, 0] if coarse else [98, 1])
    assert data.class_names[11] == ("c11" if coarse else "f11")
