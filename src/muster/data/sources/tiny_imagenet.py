"""Tiny ImageNet (Le and Yang 2015): 64 × 64 colour pictures of 200 of ImageNet's classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from muster.core.errors import DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import labelled
from muster.data.sources._parquet import find_parquet, read_picture_parquet
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD, fill_pictures, pictures_in
from muster.data.sources.base import sources

SIZE = 64


def _find_folders(folder: Path) -> Sequence[Path]:
    """The class folders of `train/` and what tells the classes of `val/`: its annotations or its class folders."""
    for place in (folder, folder / "tiny-imagenet-200"):
        train = sorted(path for path in place.glob("train/*") if path.is_dir())
        annotations = place / "val" / "val_annotations.txt"
        test = [annotations] if annotations.is_file() else sorted(p for p in place.glob("val/*") if p.is_dir())
        if train and test:
            # The folders' times change with what is in them, so they stand for 100,000 files in the cache's key.
            return [_pictures_folder(path) for path in train] + [_pictures_folder(path) for path in test]
    return ()


def _pictures_folder(path: Path) -> Path:
    return path / "images" if (path / "images").is_dir() else path


def _class_of(folder: Path) -> str:
    return folder.parent.name if folder.name == "images" else folder.name


def _read_folders(files: Sequence[Path], new: NewArray) -> Arrays:
    split_at = next(number for number, path in enumerate(files) if not _is_in(path, "train"))
    train_folders, others = files[:split_at], files[split_at:]
    classes = {_class_of(folder): number for number, folder in enumerate(train_folders)}
    train = [(picture, _class_of(folder)) for folder in train_folders for picture in _pictures_of(folder)]
    if others[0].suffix == ".txt":
        test = _annotated(others[0])
    else:
        test = [(picture, _class_of(folder)) for folder in others for picture in _pictures_of(folder)]
    arrays: Arrays = {"class_names": np.array(_words(train_folders[0], list(classes)))}
    for split, pairs in (("train", train), ("test", test)):
        unknown = next((name for _, name in pairs if name not in classes), None)
        if unknown is not None:
            raise DataError(f"the class '{unknown}' of the {split} split has no folder in train/")
        target = new(f"{split}_features", (len(pairs), 3, SIZE, SIZE), np.uint8)
        fill_pictures(target, [path for path, _ in pairs])
        arrays[f"{split}_features"] = target
        arrays[f"{split}_labels"] = np.array([classes[name] for _, name in pairs], dtype=np.int64)
    return arrays


def _is_in(path: Path, split: str) -> bool:
    """Whether a folder of pictures is one of a split: `split/class`, or `split/class/images`."""
    return (path.parent if path.name == "images" else path).parent.name == split


def _pictures_of(folder: Path) -> list[Path]:
    found = pictures_in(folder)
    if not found:
        raise DataError(f"{folder} has no pictures", fix="fetch the data set again, or remove the folder")
    return found


def _annotated(file: Path) -> list[tuple[Path, str]]:
    """The pictures of the test split and their classes, as a table has them."""
    lines = [line.split("\t") for line in file.read_text().splitlines() if line.strip()]
    if not lines or min(map(len, lines)) < 2:
        raise DataError(
            f"{file} is damaged",
            expected="lines with a picture's name, a tab, and its class",
            fix="fetch it again",
        )
    return [(file.parent / "images" / line[0], line[1]) for line in lines]


def _words(train_folder: Path, ids: list[str]) -> list[str]:
    """What words.txt calls the classes; their WordNet ids where it is missing."""
    root = train_folder.parents[2 if train_folder.name == "images" else 1]
    file = root / "words.txt"
    if not file.is_file():
        return ids
    words = dict(line.split("\t", 1) for line in file.read_text().splitlines() if "\t" in line)
    return [words.get(name, name) for name in ids]


TINY_IMAGENET = DataFiles(
    "tiny-imagenet",
    needs="the folder tiny-imagenet-200 with train/ and val/, or Parquet files with the columns image and label",
    layouts={
        "folders": FileLayout(_find_folders, _read_folders),
        "parquet": FileLayout(find_parquet, partial(read_picture_parquet, mode="RGB")),
    },
    hub="zh-plus/tiny-imagenet",
    home="tiny-imagenet-200.zip of Stanford's course CS231n",
)


@sources.register("tiny-imagenet")
def tiny_imagenet(data_dir: str | None = None) -> Dataset:
    """Tiny ImageNet: 100,000 + 10,000 colour 64 × 64 pictures of 200 classes.

    The test split is the official validation split, for the official test split has no labels.
    """
    arrays, folder = TINY_IMAGENET.arrays(data_dir)
    fallback = tuple(str(number) for number in range(200))
    normalisation = Normalisation(IMAGENET_MEAN, IMAGENET_STD, scale=1 / 255)
    return labelled("tiny-imagenet", arrays, folder, normalisation, fallback)
