"""Spawrious (Lynch et al. 2023): generated photographs of dog breeds on backgrounds that may mislead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.core.errors import ConfigError, DataError, nearest
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD, fill_pictures, pictures_in
from muster.data.sources.base import sources

BREEDS = ("bulldog", "corgi", "dachshund", "labrador")
BACKGROUNDS = ("beach", "desert", "dirt", "jungle", "mountain", "snow")


def _find_folders(folder: Path) -> Sequence[Path]:
    """All folders `…/<background>/<breed>/`, under `spawrious224/` and its numbered parts or not."""
    roots = [folder, folder / "spawrious224"]
    patterns = ("", "*/")
    return sorted(
        path
        for root in roots
        for pattern in patterns
        for path in root.glob(f"{pattern}*/*/")
        if path.name in BREEDS and path.parent.name in BACKGROUNDS and path.is_dir()
    )


def _read_folders(
    files: Sequence[Path],
    new: NewArray,
    *,
    breeds: tuple[str, ...],
    backgrounds: tuple[str, ...],
    test_fraction: float,
    size: int,
) -> Arrays:
    pictures: list[Path] = []
    labels: list[int] = []
    attributes: list[int] = []
    for label, breed in enumerate(breeds):
        for attribute, background in enumerate(backgrounds):
            folders = [path for path in files if (path.parent.name, path.name) == (background, breed)]
            cell = [picture for folder in folders for picture in pictures_in(folder)]
            if not cell:
                raise DataError(
                    f"there is no picture of a {breed} on the background {background}",
                    expected=f"a folder {background}/{breed}/",
                    fix="choose other breeds or backgrounds, or fetch the rest of the data set",
                )
            pictures += cell
            labels += [label] * len(cell)
            attributes += [attribute] * len(cell)
    y, a = np.array(labels, dtype=np.int64), np.array(attributes, dtype=np.int64)
    chosen = held_out(y * len(backgrounds) + a, test_fraction)
    arrays: Arrays = {}
    for split, part in (("train", ~chosen), ("test", chosen)):
        target = new(f"{split}_features", (int(part.sum()), 3, size, size), np.uint8)
        fill_pictures(target, [pictures[position] for position in np.flatnonzero(part)], margin=1.0)
        arrays[f"{split}_features"] = target
        arrays[f"{split}_labels"], arrays[f"{split}_attributes"] = y[part], a[part]
    return arrays


SPAWRIOUS = DataFiles(
    "spawrious",
    needs="folders <background>/<breed>/ with pictures, under spawrious224/0 and so on or directly",
    layouts={"folders": FileLayout(_find_folders, _read_folders)},
    home="https://github.com/aengusl/spawrious",
)


@sources.register("spawrious")
def spawrious(
    *,
    breeds: tuple[str, ...] = ("labrador", "dachshund"),
    backgrounds: tuple[str, ...] = ("beach", "snow"),
    test_fraction: float = 0.1,
    image_size: int = 224,
    data_dir: str | None = None,
) -> Dataset:
    """Spawrious: photographs of dog breeds (classes) on backgrounds (attributes).

    Every chosen breed is taken on every chosen background, and `test_fraction` of each such group is kept for
    testing. The skew of a federation comes from the partition.
    """
    for option, chosen, known in (("breeds", breeds, BREEDS), ("backgrounds", backgrounds, BACKGROUNDS)):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ConfigError(
                f"bad value for 'data.{option}': '{unknown[0]}'", expected=nearest(unknown[0], known)
            )
        if len(chosen) < 2 or len(set(chosen)) < len(chosen):
            raise ConfigError(
                f"bad value for 'data.{option}': {list(chosen)}", expected="two or more different ones"
            )
    if not 0.0 < test_fraction < 1.0 or image_size < 1:
        raise ConfigError(
            f"'data.test_fraction' is {test_fraction} and 'data.image_size' is {image_size}",
            expected="between 0 and 1, and at least 1",
        )
    arrays, folder = SPAWRIOUS.arrays(
        data_dir, breeds=breeds, backgrounds=backgrounds, test_fraction=test_fraction, size=image_size
    )
    normalisation = Normalisation(IMAGENET_MEAN, IMAGENET_STD, scale=1 / 255)
    return labelled("spawrious", arrays, folder, normalisation, tuple(breeds), attribute_names=tuple(backgrounds))
