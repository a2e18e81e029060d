"""Tiny ImageNet, Waterbirds and Spawrious: pictures in folders, with the layouts of their authors."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from PIL import Image

from muster.core.errors import ConfigError, DataError
from muster.data.sources import sources
from muster.data.sources._pictures import picture


def solid(size: int, *colour: int) -> np.ndarray:
    return np.full((size, size, 3), colour, dtype=np.uint8)


@pytest.fixture
def put(encoded):
    """Writes a picture of one colour; PNG content under any name, for decoders look at the content."""

    def write(path, *colour, size: int = 64):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(solid(size, *colour)))

    return write


class TestTinyImagenet:
    def train(self, root, put):
        for number, name in enumerate(("n02", "n01")):
            for copy in range(2):
                put(root / f"train/{name}/images/{name}_{copy}.JPEG", number, copy, 0)

    def check(self, data):
        assert data.train.features.shape == (4, 3, 64, 64)
        # Classes go by name, so n01 is class 0.
        assert data.train.labels.tolist() == [0, 0, 1, 1]
        assert data.train.features[:, 0, 0, 0].tolist() == [1, 1, 0, 0]
        assert data.train.features[:, 1, 0, 0].tolist() == [0, 1, 0, 1]
        assert data.test.labels.tolist() == [1, 0]
        assert data.test.features[:, 2, 5, 5].tolist() == [8, 9]

    @pytest.mark.parametrize("inside", ["", "tiny-imagenet-200"])
    def test_as_published(self, isolated, put, inside):
        root = isolated / "tiny-imagenet" / inside
        self.train(root, put)
        put(root / "val/images/val_0.JPEG", 0, 0, 8)
        put(root / "val/images/val_1.JPEG", 0, 0, 9)
        (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
        (root / "words.txt").write_text("n01\tgoldfish\nn02\tbullfrog, frog\nn03\tnewt\n")
        data = sources.build("tiny-imagenet", {})
        self.check(data)
        assert data.class_names == ("goldfish", "bullfrog, frog")

    def test_validation_split_sorted_into_folders(self, isolated, put):
        root = isolated / "tiny-imagenet"
        self.train(root, put)
        put(root / "val/n02/images/val_0.JPEG", 0, 0, 8)
        put(root / "val/n01/val_1.JPEG", 0, 0, 9)
        data = sources.build("tiny-imagenet", {})
        assert sorted(zip(data.test.labels, data.test.features[:, 2, 0, 0], strict=True)) == [(0, 9), (1, 8)]
        assert data.class_names == ("n01", "n02")

    def test_parquet(self, isolated, write_parquet):
        for split, count in (("train", 3), ("valid", 2)):
            pictures = [solid(64, n, 0, 0) for n in range(count)]
            pictures[0] = pictures[0][:, :, 0]  # some of ImageNet's pictures are grey
            write_parquet(isolated / f"tiny-imagenet/data/{split}-0.parquet", pictures, label=list(range(count)))
        data = sources.build("tiny-imagenet", {})
        assert data.classes == 200
        assert data.train.features[:, 0, 0, 0].tolist() == [0, 1, 2]
        assert len(data.test) == 2

    def test_unknown_class_and_wrong_size(self, isolated, put):
        root = isolated / "tiny-imagenet"
        self.train(root, put)
        put(root / "val/images/val_0.JPEG", 0, 0, 8)
        (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t9\t9\n")
        with pytest.raises(DataError, match="n77"):
            sources.build("tiny-imagenet", {})
        (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\n")
        put(root / "val/images/val_0.JPEG", 0, 0, 8, size=32)
        with pytest.raises(DataError, match="like the others"):
            sources.build("tiny-imagenet", {})

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (
                lambda root: (root / "val/val_annotations.txt").write_text("val_0.JPEG\n"),
                "annotations.txt is damaged",
            ),
            (lambda root: (root / "val/val_annotations.txt").write_text(""), "annotations.txt is damaged"),
            # Nobody would learn that class.
            (
                lambda root: [p.unlink() for p in (root / "train/n02/images").iterdir()],
                "n02/images has no",
            ),
            (lambda root: (root / "val/images/val_0.JPEG").write_bytes(b"?"), "val_0.JPEG: it is no picture"),
            (lambda root: (root / "val/images/val_0.JPEG").unlink(), "val_0.JPEG: No such file"),
        ],
    )
    def test_damage_is_named(self, isolated, put, spoil, message):
        root = isolated / "tiny-imagenet"
        self.train(root, put)
        put(root / "val/images/val_0.JPEG", 0, 0, 8)
        (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\n")
        spoil(root)
        with pytest.raises(DataError, match=message):
            sources.build("tiny-imagenet", {})

    @pytest.mark.parametrize("sorted_into_folders", [True, False])
    def test_the_folder_may_be_called_anything(self, isolated, put, sorted_into_folders):
        root = isolated / "train"
        self.train(root, put)
        if sorted_into_folders:
            put(root / "val/n02/val_0.JPEG", 0, 0, 8)
            put(root / "val/n01/val_1.JPEG", 0, 0, 9)
        else:
            put(root / "val/images/val_1.JPEG", 0, 0, 9)
            (root / "val/val_annotations.txt").write_text("val_1.JPEG\tn01\t0\t0\t9\t9\n")
        data = sources.build("tiny-imagenet", {"data_dir": str(root)})
        assert len(data.train) == 4
        assert data.test.features[data.test.labels == 0, 2, 0, 0].tolist() == [9]

    def test_new_pictures_are_noticed(self, isolated, put):
        root = isolated / "tiny-imagenet"
        self.train(root, put)
        put(root / "val/n01/val_1.JPEG", 0, 0, 9)
        assert len(sources.build("tiny-imagenet", {}).train) == 4
        put(root / "train/n01/images/n01_9.JPEG", 5, 5, 5)
        assert len(sources.build("tiny-imagenet", {}).train) == 5


class TestWaterbirds:
    def metadata(self, root, put):
        rows = [("a.jpg", 0, 0, 1), ("b.jpg", 1, 0, 0), ("c.jpg", 1, 1, 1), ("d.jpg", 1, 2, 1), ("e.jpg", 0, 2, 0)]
        for number, row in enumerate(rows):
            put(root / f"001.Albatross/{row[0]}", number, 0, 0, size=50 + number)
        with (root / "metadata.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["img_id", "img_filename", "y", "split", "place", "place_filename"])
            for number, (name, y, split, place) in enumerate(rows):
                writer.writerow([number, f"001.Albatross/{name}", y, split, place, "/x"])

    @pytest.mark.parametrize("inside", ["", "waterbird_complete95_forest2water2"])
    def test_metadata(self, isolated, put, inside):
        self.metadata(isolated / "waterbirds" / inside, put)
        data = sources.build("waterbirds", {"image_size": 40})
        assert data.train.features.shape == (2, 3, 40, 40)
        assert data.train.labels.tolist() == [0, 1]
        assert data.train.attributes.tolist() == [1, 0]
        assert data.test.labels.tolist() == [1, 0]
        assert data.test.attributes.tolist() == [1, 0]
        assert data.test.features[:, 0, 0, 0].tolist() == [3, 4]
        assert data.class_names == ("landbird", "waterbird")
        assert data.attribute_names == ("land", "water")
        assert data.attribute_values == 2

    def test_size_is_part_of_the_cache(self, isolated, put):
        self.metadata(isolated / "waterbirds", put)
        assert sources.build("waterbirds", {"image_size": 40}).sample_shape == (3, 40, 40)
        assert sources.build("waterbirds", {"image_size": 32}).sample_shape == (3, 32, 32)

    def test_parquet_leaves_the_validation_split_out(self, isolated, write_parquet):
        for split, count in (("train", 3), ("validation", 5), ("test", 2)):
            write_parquet(
                isolated / f"waterbirds/data/{split}-0.parquet",
                [solid(30, n, 0, 0) for n in range(count)],
                label=[n % 2 for n in range(count)],
                place=[1 - n % 2 for n in range(count)],
            )
        data = sources.build("waterbirds", {"image_size": 24})
        assert (len(data.train), len(data.test)) == (3, 2)
        assert data.train.attributes.tolist() == [1, 0, 1]

    def test_other_csv_is_refused(self, isolated):
        (isolated / "waterbirds").mkdir()
        (isolated / "waterbirds/metadata.csv").write_text("img_filename,y,split\na.jpg,0,0\n")
        with pytest.raises(DataError, match="'place'"):
            sources.build("waterbirds", {})


class TestSpawrious:
    @pytest.fixture
    def dogs(self, isolated, put):
        for part, copies in (("0", 7), ("1", 3)):
            for label, breed in enumerate(("labrador", "dachshund")):
                for attribute, background in enumerate(("beach", "snow")):
                    for copy in range(copies):
                        path = f"spawrious/spawrious224/{part}/{background}/{breed}/img_{copy}.png"
                        put(isolated / path, label * 100, attribute * 100, copy, size=20)

    @pytest.mark.usefixtures("dogs")
    def test_cells_and_held_out_share(self):
        data = sources.build("spawrious", {"image_size": 20, "test_fraction": 0.2})
        assert (len(data.train), len(data.test)) == (32, 8)
        for part, size in ((data.train, 8), (data.test, 2)):
            assert (np.bincount(part.labels * 2 + part.attributes) == size).all()
            assert (part.features[:, 0, 0, 0] == part.labels * 100).all()
            assert (part.features[:, 1, 0, 0] == part.attributes * 100).all()
        assert data.class_names == ("labrador", "dachshund")
        assert data.attribute_names == ("beach", "snow")

    @pytest.mark.usefixtures("dogs")
    def test_missing_cell(self):
        with pytest.raises(DataError, match="corgi on the background beach"):
            sources.build("spawrious", {"breeds": ["labrador", "corgi"]})

    @pytest.mark.parametrize(
        "options", [{"breeds": ["labrador", "cat"]}, {"backgrounds": ["snow"]}, {"breeds": ["corgi"] * 2}]
    )
    @pytest.mark.usefixtures("dogs")
    def test_bad_choices(self, options):
        with pytest.raises(ConfigError):
            sources.build("spawrious", options)


def test_crop_is_the_middle(encoded):
    # Left third red, middle third green, right third blue: the middle square is green.
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    for channel in range(3):
        pixels[:, 10 * channel : 10 * channel + 10, channel] = 255
    cropped = picture(encoded(pixels), "RGB", size=10)
    assert cropped.shape == (3, 10, 10)
    assert (cropped[1] == 255).all()
    assert not cropped[0].any()
    assert not cropped[2].any()


def test_more_than_8_bits_are_not_cut_off():
    """Pillow makes white of all that is brighter than 255: a picture of 16 bits would be white."""
    deep = io.BytesIO()
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(deep, "PNG")
    with pytest.raises(DataError, match="more than 8 bits"):
        picture(deep.getvalue(), "L")
