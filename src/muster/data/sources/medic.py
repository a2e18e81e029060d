"""Disaster posts, picture and text together, as MEDIC (Alam et al. 2023) and its relatives publish them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from muster.core.errors import ConfigError, DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, LeadingPicture, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD, fill_pictures, pictures_in
from muster.data.sources._table import read_table
from muster.data.sources._text import Encoded, encode_texts, vocabulary_option
from muster.data.sources.base import sources
from muster.data.wordpiece import MINILM, Vocabulary

_TEXT_COLUMNS = ("tweet_text", "text")


class Post(NamedTuple):
    picture: Path
    text: str
    label: str


def _find_tables(folder: Path) -> Sequence[Path]:
    """A table for training, one for testing (named like `MEDIC_train.tsv`), and the folders beside them."""
    tables = [path for path in sorted(folder.glob("*")) if path.suffix in (".tsv", ".csv")]
    train = [path for path in tables if path.stem.lower().endswith("train")]
    test = [path for path in tables if path.stem.lower().endswith("test")]
    if len(train) != 1 or len(test) != 1:
        return ()
    return [train[0], test[0], *sorted(path for path in folder.iterdir() if path.is_dir())]


def _find_folders(folder: Path) -> Sequence[Path]:
    """A folder for every class, with `images/` and `text/` whose files share their names."""
    for place in (folder, folder / "multimodal"):
        classes = [
            path for path in sorted(place.glob("*")) if (path / "images").is_dir() and (path / "text").is_dir()
        ]
        if len(classes) > 1:
            return [part for path in classes for part in (path / "images", path / "text")]
    return ()


def _read_tables(
    files: Sequence[Path],
    new: NewArray,
    *,
    task: str,
    image_size: int,
    encoder: str,
    width: int,
    test_fraction: float,
    length: int = 32,
    vocabulary: Vocabulary | None = None,
) -> Arrays:
    splits = {split: _posts_of_table(file, task) for split, file in zip(("train", "test"), files, strict=False)}
    train, test = ([post.text for post in splits[split]] for split in ("train", "test"))
    encoded = encode_texts(train, test, encoder, width, length, vocabulary=vocabulary)
    return _arrays(new, splits, image_size, encoded)


def _posts_of_table(file: Path, task: str) -> list[Post]:
    rows = read_table(file, ("image_path", task), filled=("image_path", task))
    text = next((name for name in _TEXT_COLUMNS if name in rows[0]), None)
    if text is None:
        raise DataError(
            f"{file} has no texts (it has the columns {', '.join(rows[0])})",
            expected=f"a column {' or '.join(_TEXT_COLUMNS)}",
        )
    return [Post(file.parent / row["image_path"], row[text], row[task]) for row in rows]


def _read_folders(
    files: Sequence[Path],
    new: NewArray,
    *,
    task: str,
    image_size: int,
    encoder: str,
    width: int,
    test_fraction: float,
    length: int = 32,
    vocabulary: Vocabulary | None = None,
) -> Arrays:
    posts = []
    for images, texts in zip(files[::2], files[1::2], strict=True):
        for path in pictures_in(images):
            text = texts / f"{path.stem}.txt"
            if text.is_file():
                content = text.read_text(encoding="utf-8", errors="replace")
                posts.append(Post(path, content, images.parent.name))
    if not posts:
        raise DataError(f"{files[0].parent.parent}: no picture has a text of the same name")
    _, groups = np.unique([post.label for post in posts], return_inverse=True)
    chosen = held_out(groups, test_fraction)
    splits = {
        "train": [post for post, out in zip(posts, chosen, strict=True) if not out],
        "test": [post for post, out in zip(posts, chosen, strict=True) if out],
    }
    train, test = ([post.text for post in splits[split]] for split in ("train", "test"))
    encoded = encode_texts(train, test, encoder, width, length, vocabulary=vocabulary)
    return _arrays(new, splits, image_size, encoded)


def _arrays(new: NewArray, splits: dict[str, list[Post]], size: int, texts: Encoded) -> Arrays:
    names = sorted({post.label for posts in splits.values() for post in posts})
    numbers = {name: number for number, name in enumerate(names)}
    mean, std = (np.array(v, dtype=np.float32)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    arrays: Arrays = {"class_names": np.array(names), "vocabulary": np.array([texts.vocabulary])}
    for (split, posts), text in zip(splits.items(), (texts.train, texts.test), strict=True):
        pixels = 3 * size * size
        packed = new(f"{split}_features", (len(posts), pixels + text.shape[1]), np.float32)
        packed[:, pixels:] = text
        for start in range(0, len(posts), 256):
            part = [post.picture for post in posts[start : start + 256]]
            pictures = np.empty((len(part), 3, size, size), dtype=np.uint8)
            fill_pictures(pictures, part, margin=1.0)
            normalised = (pictures.astype(np.float32) / 255 - mean) / std
            packed[start : start + len(part), :pixels] = normalised.reshape(len(part), -1)
        arrays[f"{split}_features"] = packed
        arrays[f"{split}_labels"] = np.array([numbers[post.label] for post in posts], dtype=np.int64)
    return arrays


MEDIC = DataFiles(
    "medic",
    needs="tables *train.tsv and *test.tsv with the columns image_path, tweet_text and a label, or a folder for "
    "every class with images/ and text/",
    layouts={
        "tables": FileLayout(_find_tables, _read_tables),
        "folders": FileLayout(_find_folders, _read_folders),
    },
    home="https://crisisnlp.qcri.org",
)


@sources.register("medic")
def medic(
    *,
    task: str = "disaster_types",
    image_size: int = 64,
    encoder: str = "minilm",
    width: int = 1024,
    length: int = 32,
    vocabulary: str = MINILM,
    test_fraction: float = 0.1,
    data_dir: str | None = None,
) -> Dataset:
    """MEDIC: posts about disasters, a picture and a text each, packed into one vector.

    A sample is the picture's 3 × `image_size` × `image_size` values (channels, rows, columns; normalised as for
    ImageNet), then the text's features: 384 with `encoder = "minilm"`, `width` with `tfidf` or `hashing`, the ids
    of `length` word pieces with `wordpiece` (of the BERT in the folder `vocabulary`). The model `late-fusion`
    takes them apart again, given `image_shape = [3, image_size, image_size]`. `task` is the label's column in
    tables; folders per class have no split, so `test_fraction` of each class is kept out.
    """
    if image_size < 1 or not 0.0 < test_fraction < 1.0 or encoder == "words":
        raise ConfigError(
            f"image_size {image_size}, test_fraction {test_fraction}, encoder '{encoder}'",
            expected="a size of at least 1, a fraction between 0 and 1, and an encoder other than words",
        )
    options: dict[str, object] = {"task": task, "image_size": image_size, "encoder": encoder, "width": width}
    if pieces := vocabulary_option(encoder, vocabulary):
        options |= {"length": length, **pieces}
    arrays, folder = MEDIC.arrays(data_dir, test_fraction=test_fraction, **options)
    known = str(arrays["vocabulary"][0]) if "vocabulary" in arrays else ""
    picture = LeadingPicture((3, image_size, image_size), Normalisation(IMAGENET_MEAN, IMAGENET_STD))
    return labelled("medic", arrays, folder, Normalisation(), vocabulary=known, picture=picture)
