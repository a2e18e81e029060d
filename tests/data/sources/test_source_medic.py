"""MEDIC: picture and text in one vector."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from muster.core.errors import ConfigError, DataError
from muster.data.sources import sources
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD
from muster.data.sources._text import encode_texts

OPTIONS = {"encoder": "hashing", "width": 16, "image_size": 4}


@pytest.fixture
def put(encoded):
    def write(path, shade: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(np.full((9, 12, 3), (shade, 0, 255), dtype=np.uint8)))

    return write


def write_table(path, columns, rows, delimiter="\t") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([columns, *rows])


@pytest.mark.parametrize(("suffix", "delimiter"), [("tsv", "\t"), ("csv", ",")])
def test_tables(isolated, put, suffix, delimiter):
    folder = isolated / "medic"
    columns = ["image_path", "tweet_text", "disaster_types", "informative"]
    train = [("images/a.jpg", "a flood", "flood", "yes"), ("images/b.jpg", "fire!", "fire", "no")]
    for number, row in enumerate(train):
        put(folder / row[0], 100 * number)
    put(folder / "images/c.jpg", 255)
    write_table(folder / f"MEDIC_train.{suffix}", columns, train, delimiter)
    write_table(folder / f"MEDIC_test.{suffix}", columns, [("images/c.jpg", "flood", "flood", "yes")], delimiter)
    data = sources.build("medic", OPTIONS)
    assert data.class_names == ("fire", "flood")
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.features.shape == (2, 3 * 4 * 4 + 16)
    assert data.train.features.dtype == np.float32
    pixels, text = data.train.features[:, :48].reshape(2, 3, 4, 4), data.train.features[:, 48:]
    expected = (np.array([100, 0, 255]) / 255 - IMAGENET_MEAN) / IMAGENET_STD
    assert pixels[1, :, 2, 3] == pytest.approx(expected, abs=1e-5)
    assert (text == encode_texts(["a flood", "fire!"], [""], "hashing", 16).train).all()
    other = sources.build("medic", OPTIONS | {"task": "informative"})
    assert other.class_names == ("no", "yes")
    with pytest.raises(DataError, match="damage"):
        sources.build("medic", OPTIONS | {"task": "damage"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("images/a.jpg", "flood", ""), "'disaster_types' is empty"),
        (("images/a.jpg",), "has 1 columns"),
        (("images/z.jpg", "flood", "flood"), r"z\.jpg: No such file"),
    ],
)
def test_posts_that_lack_something(isolated, put, row, message):
    folder = isolated / "medic"
    put(folder / "images/a.jpg", 0)
    for split in ("train", "test"):
        write_table(folder / f"{split}.tsv", ["image_path", "text", "disaster_types"], [row])
    with pytest.raises(DataError, match=message):
        sources.build("medic", OPTIONS)


def test_a_table_without_texts(isolated):
    for split in ("train", "test"):
        write_table(isolated / f"medic/{split}.tsv", ["image_path", "disaster_types"], [("a.jpg", "fire")])
    with pytest.raises(DataError, match="has no texts"):
        sources.build("medic", OPTIONS)


@pytest.mark.parametrize("inside", ["", "multimodal/"])
def test_folders_per_class(isolated, put, inside):
    for number, name in enumerate(("fires", "flood")):
        for copy in range(10):
            folder = isolated / "medic" / f"{inside}{name}"
            put(folder / f"images/p{copy}.jpg", 100 * number + copy)
            (folder / "text").mkdir(exist_ok=True)
            if copy != 9:  # a picture without a text does not count
                (folder / f"text/p{copy}.txt").write_text(f"{name} {copy}")
    data = sources.build("medic", OPTIONS | {"test_fraction": 0.25})
    assert np.bincount(data.train.labels).tolist() == [7, 7]
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    # Picture and text of a sample belong together: both tell its number.
    shades = np.rint((data.test.features[:, 0] * IMAGENET_STD[0] + IMAGENET_MEAN[0]) * 255).astype(int)
    texts = [f"{('fires', 'flood')[shade // 100]} {shade % 100}" for shade in shades]
    assert (data.test.features[:, 48:] == encode_texts(texts, [""], "hashing", 16).train).all()


@pytest.mark.parametrize("options", [{"image_size": 0}, {"test_fraction": 0.0}, {"encoder": "words"}])
def test_bad_options(options):
    with pytest.raises(ConfigError):
        sources.build("medic", options)
