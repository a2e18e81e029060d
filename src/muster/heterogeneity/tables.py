"""Who has how many samples of what: from a federation, or from a file that a data owner can write by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import DataError
from muster.data.federated import FederatedData

FORMATS = (".csv", ".json", ".npy")
_SHAPES = "(clients, classes) or (clients, classes, attribute values)"


@dataclass(frozen=True)
class Counts:
    """Samples of every client, class and attribute value, with names for people."""

    title: str
    #: clients × classes × attribute values; one value where there are no attributes.
    table: np.ndarray[Any, Any]
    #: Empty where the numbers will do.
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    has_attributes: bool = True

    @classmethod
    def of(cls, fed: FederatedData) -> Counts:
        dataset, groups = fed.dataset, fed.group_counts
        table = fed.label_histograms[:, :, None] if groups is None else groups
        names = {"classes": dataset.class_names, "attributes": dataset.attribute_names}
        return cls(dataset.name, table, _names_of(fed), **names, has_attributes=groups is not None)

    @property
    def histograms(self) -> np.ndarray[Any, Any]:
        """clients × classes."""
        return np.asarray(self.table.sum(axis=2))

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.table.sum(axis=(1, 2)))

    def client(self, position: int) -> str:
        return self.clients[position] if self.clients else str(position)

    def class_name(self, position: int) -> str:
        name = self.classes[position] if self.classes else str(position)
        return f"class {name}" if name.isdigit() else name

    def group_name(self, label: int, attribute: int) -> str:
        """A cell of the table; without attributes just the class."""
        if not self.has_attributes:
            return self.class_name(label)
        value = self.attributes[attribute] if self.attributes else str(attribute)
        return f"{self.class_name(label)}, {f'attribute {value}' if value.isdigit() else value}"


def _names_of(fed: FederatedData) -> tuple[str, ...]:
    """What the clients are called; nothing where they are not those that the samples name."""
    names, owners, index = fed.dataset.owner_names, fed.dataset.train.owners, fed.train_index
    if owners is None or len(names) != fed.clients:
        return ()
    natural = np.array_equal(owners[index.samples], np.repeat(np.arange(fed.clients), index.sizes))
    return names if natural else ()


def read_counts(path: Path) -> Counts:
    """Read a table of counts: .csv, .json or .npy (docs/inspect.md says how they look)."""
    readers = {".csv": _read_csv, ".json": _read_json, ".npy": _read_npy}
    if path.suffix.lower() not in readers:
        raise DataError(f"cannot read counts from {path}", expected=f"a file that ends in {', '.join(FORMATS)}")
    try:
        values, names = readers[path.suffix.lower()](path)
        table = np.array(values, dtype=np.float64)
    except OSError as error:
        raise DataError(f"cannot read the counts {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError) as error:
        raise DataError(
            f"{path} does not hold a table of counts: {error}", expected=f"numbers, {_SHAPES}"
        ) from error
    if table.ndim not in (2, 3) or 0 in table.shape:
        raise DataError(f"the counts in {path} have the shape {table.shape}", expected=_SHAPES)
    has_attributes = table.ndim == 3
    table = table if has_attributes else table[:, :, None]
    for axis, (kind, given) in enumerate(names.items()):
        if given and len(given) != table.shape[axis]:
            raise DataError(f"{path} names {len(given)} {kind}, but its counts have {table.shape[axis]}")
    return Counts(path.name, _whole(table), **names, has_attributes=has_attributes)


_Read = tuple[Any, dict[str, tuple[str, ...]]]


def _names(clients: Sequence[Any] = (), classes: Sequence[Any] = (), attributes: Sequence[Any] = ()) -> Any:
    return {
        "clients": tuple(map(str, clients)),
        "classes": tuple(map(str, classes)),
        "attributes": tuple(map(str, attributes)),
    }


def _read_npy(path: Path) -> _Read:
    return np.load(path, allow_pickle=False), _names()


def _read_json(path: Path) -> _Read:
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return content, _names()
    if not isinstance(content, dict) or "counts" not in content:
        raise ValueError("there is no key 'counts'")
    return content["counts"], _names(*(content.get(key, ()) for key in ("clients", "classes", "attributes")))


def _read_csv(path: Path) -> _Read:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)] or [[]]
    header = [name.strip() for name in header]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the heading has {len(header)}")
    if "count" in header:
        return _long_csv(header, rows)
    clients = [row[0].strip() for row in rows]
    return [[float(cell) for cell in row[1:]] for row in rows], _names(clients, header[1:])


def _long_csv(header: list[str], rows: list[list[str]]) -> _Read:
    """One row per cell; cells that do not occur are empty, names keep the order in which they appear."""
    keys = ["client", "class", *(["attribute"] if "attribute" in header else [])]
    for key in keys:
        if key not in header:
            raise ValueError(f"there is a column 'count' but no column '{key}'")
    columns = [[row[header.index(key)].strip() for row in rows] for key in keys]
    names = [list(dict.fromkeys(column)) for column in columns]
    positions = [{name: place for place, name in enumerate(known)} for known in names]
    places = tuple(np.array([at[cell] for cell in column]) for at, column in zip(positions, columns, strict=True))
    table = np.zeros([len(known) for known in names])
    np.add.at(table, places, [float(row[header.index("count")]) for row in rows])
    return table, _names(*names)


def _whole(table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As integers, where that loses nothing."""
    whole: Ints = np.nan_to_num(table).astype(np.int64)
    return whole if np.array_equal(whole, table) else table
