"""Clients with class imbalance, attribute imbalance or a spurious correlation between class and attribute.

After the federations of FedDiverse (Németh et al., 2025), which are here by name, and a general construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError, nearest
from muster.data.federated import Dataset, Index
from muster.data.partition._filling import deal
from muster.data.partition._group_tables import blueprints
from muster.data.partition._pools import matching_shares, shuffled_pools
from muster.data.partition._rounding import largest_remainder
from muster.data.partition.base import Partition, Scheme, schemes

Skew = Literal["class", "attribute", "correlation"]


def named_tables(name: str) -> Ints:
    """clients × classes × attribute values: one of the published federations."""
    if name not in blueprints:
        raise ConfigError(f"unknown group table '{name}'", expected=nearest(name, blueprints))
    return np.concatenate([np.tile(np.array(table), (times, 1, 1)) for times, table in blueprints[name]])


def skewed_table(
    skew: Skew, classes: int, attributes: int, size: int, share: float, *, reverse: bool = False
) -> Ints:
    """classes × attribute values: a client of `size` samples, `share` of them in its majority half of the table.

    The halves are the first and the last classes ("class"), the first and the last attribute values
    ("attribute"), or the two diagonals of half classes and half values ("correlation"); `reverse` swaps them. In
    a 2 × 2 table this skew has the strength 1 − H₂(share) bits, and the other two are zero.
    """
    first_class = (np.arange(classes) < (classes + 1) // 2)[:, None]
    first_value = (np.arange(attributes) < (attributes + 1) // 2)[None, :]
    majority = {
        "class": first_class | np.zeros_like(first_value),
        "attribute": np.zeros_like(first_class) | first_value,
        "correlation": first_class == first_value,
    }[skew]
    majority = majority ^ reverse
    weights = np.where(majority, share / majority.sum(), (1 - share) / (~majority).sum())
    return largest_remainder(weights.ravel(), size).reshape(classes, attributes)


def group_skew(cells: Ints, tables: Ints, rng: np.random.Generator) -> Index:
    """Clients with exactly the samples that `tables` (clients × cells) ask of every cell, without replacement.

    `cells` is the class and attribute of every sample as one number. What no client asks for stays unassigned.
    """
    return deal(shuffled_pools(cells, tables.shape[1], rng), tables)


@schemes.register("group-skew")
@dataclass(frozen=True)
class GroupSkew(Scheme):
    """Clients with class imbalance, attribute imbalance or spurious correlation.

    Either `table` names a published federation, or `class_skew`, `attribute_skew` and `correlation` say how many
    clients lean each way (toward the first and toward the second half), all with `size` samples and a majority of
    `share`. Clients have the same share of each group's test samples as of its training samples.
    """

    needs_classes: ClassVar[bool] = True

    clients: int | None = None
    table: str | None = None
    class_skew: tuple[int, int] = (0, 0)
    attribute_skew: tuple[int, int] = (0, 0)
    correlation: tuple[int, int] = (0, 0)
    size: int = 200
    share: float = 0.9

    def divide(self, dataset: Dataset, rng: np.random.Generator) -> Partition:
        attributes, values = dataset.train.attributes, dataset.attribute_values
        if attributes is None or values is None:
            raise DataError(
                f"the data set '{dataset.name}' has no group attributes",
                expected="data such as cmnist, waterbirds, spawrious or spurious-shapes",
                fix="choose another partition.scheme",
            )
        tables = self.tables(dataset.classes, values)
        cells = dataset.train.labels * values + attributes
        flat = tables.reshape(len(tables), -1)
        self._check_supply(flat.sum(axis=0), np.bincount(cells, minlength=flat.shape[1]), dataset)
        train = group_skew(cells, flat, rng)
        test = None
        if len(dataset.test) and dataset.test.attributes is not None:
            test_cells = dataset.test.labels * values + dataset.test.attributes
            test = matching_shares(train, cells, test_cells, flat.shape[1], rng)
        return Partition(train, test)

    def tables(self, classes: int, values: int) -> Ints:
        """clients × classes × attribute values: how much of each group every client has."""
        tables = named_tables(self.table) if self.table is not None else self._constructed(classes, values)
        if tables.shape[1:] != (classes, values):
            rows, columns = tables.shape[1:]
            raise ConfigError(
                f"the group table '{self.table}' is for {rows} classes and {columns} attribute values, "
                f"but the data has {classes} and {values}"
            )
        if self.clients is not None and self.clients != len(tables):
            raise ConfigError(
                f"partition.clients is {self.clients}, but the groups describe {len(tables)} clients",
                fix="leave partition.clients out",
            )
        return tables

    def _constructed(self, classes: int, values: int) -> Ints:
        asked: dict[Skew, tuple[int, int]] = {
            "class": self.class_skew,
            "attribute": self.attribute_skew,
            "correlation": self.correlation,
        }
        if min(min(pair) for pair in asked.values()) < 0 or not any(any(pair) for pair in asked.values()):
            raise ConfigError(
                "group-skew needs clients",
                fix="set partition.table, or numbers of clients: class_skew, attribute_skew, correlation",
            )
        if not 0.5 <= self.share <= 1 or self.size < 1 or min(classes, values) < 2:
            raise ConfigError(
                f"group-skew cannot make clients of {self.size} samples with a majority share of {self.share} "
                f"from {classes} classes and {values} attribute values",
                expected="size ≥ 1, 0.5 ≤ share ≤ 1, at least two classes and two attribute values",
            )
        kinds = [
            skewed_table(skew, classes, values, self.size, self.share, reverse=reverse)
            for skew in asked
            for reverse in (False, True)
        ]
        return np.repeat(np.stack(kinds), [times for pair in asked.values() for times in pair], axis=0)

    @staticmethod
    def _check_supply(demand: Ints, supply: Ints, dataset: Dataset) -> None:
        short = np.flatnonzero(demand > supply)
        if len(short):
            values = dataset.attribute_values or 1
            lacking = "; ".join(
                f"class {cell // values}, attribute {cell % values}: {demand[cell]} wanted, {supply[cell]} there"
                for cell in short.tolist()
            )
            raise DataError(
                f"'{dataset.name}' has too few samples of some groups ({lacking})",
                fix="use fewer or smaller clients; samples are never used twice",
            )
