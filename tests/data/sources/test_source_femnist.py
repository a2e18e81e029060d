"""FEMNIST by writer, from LEAF's JSON and from Parquet files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.data.sources import sources


def write_leaf(path, users: dict[str, tuple[list, list]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def shades(*values: int) -> list[list[float]]:
    return [[value / 255] * 784 for value in values]


@pytest.mark.parametrize("inside", ["", "data/"])
def test_leaf_split(isolated, inside):
    folder = isolated / "femnist"
    write_leaf(folder / f"{inside}train/a.json", {"w7": (shades(1, 2), [0, 61]), "w3": (shades(3), [10])})
    write_leaf(folder / f"{inside}train/b.json", {"w9": (shades(4), [36])})
    write_leaf(folder / f"{inside}test/a.json", {"w3": (shades(5), [11]), "w7": (shades(6), [1])})
    data = sources.build("femnist", {})
    assert data.train.features.shape == (4, 1, 28, 28)
    assert data.train.features[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert data.train.labels.tolist() == [0, 61, 10, 36]
    assert data.train.owners.tolist() == [0, 0, 1, 2]
    assert data.test.owners.tolist() == [1, 0]
    assert data.owner_names == ("w7", "w3", "w9")
    assert (data.classes, data.class_names[61], data.class_names[10]) == (62, "z", "A")


def test_leaf_without_split_keeps_a_tenth_of_every_writer_out(isolated):
    users = {f"w{k}": (shades(*range(n)), [k] * n) for k, n in enumerate((5, 10, 30))}
    write_leaf(isolated / "femnist/all_data/a.json", users)
    data = sources.build("femnist", {})
    assert np.bincount(data.train.owners).tolist() == [5, 9, 27]
    assert np.bincount(data.test.owners, minlength=3).tolist() == [0, 1, 3]
    together = np.concatenate([data.train.features, data.test.features])[:, 0, 0, 0]
    assert sorted(together.tolist()) == sorted([*range(5), *range(10), *range(30)])


def test_parquet(isolated, write_parquet):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    writers = [f"f{n % 2:04d}_{n % 2}" for n in range(40)]
    write_parquet(
        isolated / "femnist/data/train-0.parquet",
        pictures,
        writer_id=writers,
        character=[n % 62 for n in range(40)],
    )
    data = sources.build("femnist", {})
    assert (len(data.train), len(data.test)) == (36, 4)
    assert data.owner_names == ("f0000_0", "f0001_1")
    for part in (data.train, data.test):
        # The label tells the position, and so which picture and writer belong to it.
        assert (part.features[:, 0] == pictures[part.labels]).all()
        assert (part.owners == part.labels % 2).all()


@pytest.mark.parametrize("damage", ["json", "keys", "lengths", "pixels"])
def test_damaged_leaf_files(isolated, damage):
    file = isolated / "femnist/all_data/a.json"
    write_leaf(file, {"w": (shades(1, 2), [0, 1])})
    if damage == "json":
        file.write_text(file.read_text()[:-5])
    if damage == "keys":
        file.write_text('{"users": ["w"]}')
    if damage == "lengths":
        write_leaf(file, {"w": (shades(1), [0, 1])})
    if damage == "pixels":
        write_leaf(file, {"w": ([[0.5] * 783], [0])})
    with pytest.raises(DataError, match=r"a\.json"):
        sources.build("femnist", {})
