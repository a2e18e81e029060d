"""PACS (Li et al. 2017): seven kinds of things as photographs, art paintings, cartoons and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError, nearest
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import held_out, labelled
from muster.data.sources._parquet import column, encoded_pictures, find_unsplit_parquet, integers
from muster.data.sources._pictures import IMAGENET_MEAN, IMAGENET_STD, fill_pictures
from muster.data.sources.base import sources

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
#: Joins names that are to be one: "cartoon+sketch".
JOIN = "+"


def _read_parquet(
    files: Sequence[Path],
    new: NewArray,
    *,
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    test_fraction: float,
    test_domain: str | None,
    size: int,
) -> Arrays:
    kinds, origins = integers(files, "label", below=len(CLASSES)), _domains(files)
    labels, attributes = _joined(classes, CLASSES)[kinds], _joined(domains, DOMAINS)[origins]
    if test_domain is None:
        chosen = held_out(kinds * len(DOMAINS) + origins, test_fraction)
    else:
        chosen = origins == DOMAINS.index(test_domain)
    encoded = [content for batch in encoded_pictures(files, "image") for content in batch]
    arrays: Arrays = {"owner_names": np.array(DOMAINS)}
    for split, of_split in (("train", ~chosen), ("test", chosen)):
        part = np.flatnonzero(of_split & (labels >= 0) & (attributes >= 0))
        if not len(part):
            raise DataError(f"{files[0]} has no {split} picture of these classes and domains")
        target = new(f"{split}_features", (len(part), 3, size, size), np.uint8)
        names = [f"picture {position} of {files[0].parent}" for position in part]
        fill_pictures(target, [encoded[position] for position in part], margin=1.0, names=names)
        arrays[f"{split}_features"] = target
        arrays[f"{split}_labels"], arrays[f"{split}_attributes"] = labels[part], attributes[part]
        arrays[f"{split}_owners"] = origins[part]
    return arrays


def _domains(files: Sequence[Path]) -> Ints:
    """The domain of every picture, as a number."""
    numbers = {name: number for number, name in enumerate(DOMAINS)}
    spelt = [str(name) for name in column(files, "domain").to_pylist()]
    unknown = sorted(set(spelt) - set(numbers))
    if unknown:
        raise DataError(f"{files[0]}: unknown domain '{unknown[0]}'", expected=", ".join(DOMAINS))
    return np.array([numbers[name] for name in spelt], dtype=np.int64)


def _joined(groups: tuple[str, ...], known: tuple[str, ...]) -> Ints:
    """For each known name the number of the group that it is in; −1: none."""
    place = {name: number for number, group in enumerate(groups) for name in group.split(JOIN)}
    return np.array([place.get(name, -1) for name in known], dtype=np.int64)


PACS = DataFiles(
    "pacs",
    needs="Parquet files with the columns image, domain (text) and label",
    layouts={"parquet": FileLayout(find_unsplit_parquet, _read_parquet)},
    hub="flwrlabs/pacs",
)


@sources.register("pacs")
def pacs(
    *,
    classes: tuple[str, ...] = CLASSES,
    domains: tuple[str, ...] = DOMAINS,
    test_fraction: float = 0.2,
    test_domain: str | None = None,
    image_size: int = 64,
    data_dir: str | None = None,
) -> Dataset:
    """PACS: 9,991 pictures of seven kinds of things (classes) in four styles (the domain: attribute and owner).

    Names that are joined with "+" become one: `domains = ["art_painting+photo", "cartoon+sketch"]`. The data have
    no split of their own: `test_fraction` of each class in each domain is for testing, or with `test_domain` all
    of that domain and nothing else (leave one domain out).
    """
    for option, groups, known in (("classes", classes, CLASSES), ("domains", domains, DOMAINS)):
        _check_groups(option, groups, known)
    if test_domain is not None and test_domain not in [name for group in domains for name in group.split(JOIN)]:
        raise ConfigError(
            f"bad value for 'data.test_domain': '{test_domain}'", expected=nearest(test_domain, DOMAINS)
        )
    if not 0.0 < test_fraction < 1.0 or image_size < 1:
        raise ConfigError(
            f"'data.test_fraction' is {test_fraction} and 'data.image_size' is {image_size}",
            expected="between 0 and 1, and at least 1",
        )
    arrays, folder = PACS.arrays(
        data_dir,
        classes=tuple(classes),
        domains=tuple(domains),
        test_fraction=test_fraction,
        test_domain=test_domain,
        size=image_size,
    )
    normalisation = Normalisation(IMAGENET_MEAN, IMAGENET_STD, scale=1 / 255)
    return labelled("pacs", arrays, folder, normalisation, tuple(classes), attribute_names=tuple(domains))


def _check_groups(option: str, groups: tuple[str, ...], known: tuple[str, ...]) -> None:
    names = [name for group in groups for name in group.split(JOIN)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"bad value for 'data.{option}': '{unknown[0]}'", expected=nearest(unknown[0], known))
    if len(groups) < 2 or len(set(names)) < len(names):
        raise ConfigError(
            f"bad value for 'data.{option}': {list(groups)}",
            expected="two or more, separate or joined with '+', each name once",
        )
