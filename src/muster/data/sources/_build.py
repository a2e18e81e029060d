"""From decoded arrays to a data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import DataError
from muster.data.cache import Arrays
from muster.data.federated import Dataset, LeadingPicture, Normalisation, Samples


def samples(arrays: Arrays, split: str) -> Samples:
    """A split from the arrays `train_features`, `train_labels`, … by its name."""
    return Samples(
        features=arrays[f"{split}_features"],
        labels=arrays[f"{split}_labels"],
        attributes=arrays.get(f"{split}_attributes"),
        owners=arrays.get(f"{split}_owners"),
    )


def labelled(
    name: str,
    arrays: Arrays,
    folder: Path,
    normalisation: Normalisation,
    class_names: tuple[str, ...] = (),
    *,
    attribute_names: tuple[str, ...] = (),
    tokens: bool = False,
    vocabulary: str = "",
    picture: LeadingPicture | None = None,
) -> Dataset:
    """A data set from its arrays; names that the arrays carry go before those given."""
    class_names = names(arrays, "class_names") or class_names
    train, test = samples(arrays, "train"), samples(arrays, "test")
    for split, part in (("training", train), ("test", test)):
        _check_range(part.labels, len(class_names), f"{folder}: the {split} labels")
        if part.attributes is not None:
            _check_range(part.attributes, len(attribute_names), f"{folder}: the {split} attributes")
    return Dataset(
        name=name,
        train=train,
        test=test,
        classes=len(class_names),
        normalisation=normalisation,
        attribute_values=len(attribute_names) or None,
        class_names=class_names,
        attribute_names=attribute_names,
        owner_names=names(arrays, "owner_names"),
        tokens=tokens,
        vocabulary=vocabulary,
        picture=picture,
        origin=str(folder),
    )


def _check_range(values: Ints, count: int, what: str) -> None:
    if len(values) and not 0 <= values.min() <= values.max() < count:
        raise DataError(f"{what} go from {values.min()} to {values.max()}", expected=f"0 to {count - 1}")


def names(arrays: Arrays, key: str) -> tuple[str, ...]:
    return tuple(str(name) for name in arrays.get(key, ()))


def held_out(groups: Ints, fraction: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which samples to keep for testing: ⌊fraction · size⌋ of every group, the same on every machine.

    Samples are ranked within their group by a hash of their position, so the choice looks random, depends on no
    generator's version, and never takes a group's last training sample.
    """
    with np.errstate(over="ignore"):
        mixed = np.arange(1, len(groups) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    order = np.lexsort((mixed, groups))
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    rank = np.arange(len(groups)) - np.repeat(starts, sizes)
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order] = rank < np.repeat(np.floor(fraction * sizes), sizes)
    return chosen
