"""Waterbirds (Sagawa et al. 2020): land birds and water birds on land and water backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.core.errors import ConfigError, DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import labelled
from muster.data.sources._parquet import columns_of, fill_from_parquet, find_parquet, integers, of_split
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD, MARGIN, fill_pictures
from muster.data.sources._table import read_table
from muster.data.sources.base import sources

#: The codes of the column `split`; 1 is the validation split.
_SPLITS = {"train": "0", "test": "2"}
_PLACE_COLUMNS = ("place", "background", "attribute")


def _find_metadata(folder: Path) -> Sequence[Path]:
    """The table and the folders of pictures beside it."""
    for place in (folder, folder / "waterbird_complete95_forest2water2"):
        if (place / "metadata.csv").is_file():
            return [place / "metadata.csv", *sorted(path for path in place.iterdir() if path.is_dir())]
    return ()


def _read_metadata(files: Sequence[Path], new: NewArray, size: int) -> Arrays:
    metadata = files[0]
    columns = ("img_filename", "y", "split", "place")
    rows = read_table(metadata, columns, filled=columns)
    arrays: Arrays = {}
    for split, code in _SPLITS.items():
        chosen = [row for row in rows if row["split"] == code]
        target = new(f"{split}_features", (len(chosen), 3, size, size), np.uint8)
        fill_pictures(target, [metadata.parent / row["img_filename"] for row in chosen], margin=MARGIN)
        arrays[f"{split}_features"] = target
        arrays[f"{split}_labels"] = np.array([int(row["y"]) for row in chosen], dtype=np.int64)
        arrays[f"{split}_attributes"] = np.array([int(row["place"]) for row in chosen], dtype=np.int64)
    return arrays


def _read_parquet(files: Sequence[Path], new: NewArray, size: int) -> Arrays:
    place = next((name for name in _PLACE_COLUMNS if name in columns_of(files[0])), None)
    if place is None:
        raise DataError(f"{files[0]} has no backgrounds", expected=f"a column {' or '.join(_PLACE_COLUMNS)}")
    arrays: Arrays = {}
    for split in _SPLITS:
        chosen = of_split(files, split)
        arrays[f"{split}_features"] = fill_from_parquet(new, f"{split}_features", chosen, "RGB", size)
        arrays[f"{split}_labels"] = integers(chosen, "label")
        arrays[f"{split}_attributes"] = integers(chosen, place)
    return arrays


WATERBIRDS = DataFiles(
    "waterbirds",
    needs="the folder waterbird_complete95_forest2water2 with metadata.csv and its pictures, or Parquet files "
    "with the columns image, label and place",
    layouts={
        "metadata": FileLayout(_find_metadata, _read_metadata),
        "parquet": FileLayout(find_parquet, _read_parquet),
    },
    hub="grodino/waterbirds",
    home="https://github.com/kohpangwei/group_DRO",
)


@sources.register("waterbirds")
def waterbirds(image_size: int = 224, data_dir: str | None = None) -> Dataset:
    """Waterbirds: 4,795 + 5,794 pictures of land and water birds; attribute = land or water background.

    Pictures are scaled and cropped to `image_size`. The official validation split is left out.
    """
    if image_size < 1:
        raise ConfigError(f"bad value for 'data.image_size': {image_size}", expected="at least 1")
    arrays, folder = WATERBIRDS.arrays(data_dir, size=image_size)
    return labelled(
        "waterbirds",
        arrays,
        folder,
        Normalisation(IMAGENET_MEAN, IMAGENET_STD, scale=1 / 255),
        ("landbird", "waterbird"),
        attribute_names=("land", "water"),
    )
