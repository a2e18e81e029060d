"""Who has how many samples of what: from a federation, or from a file that a data owner can write by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import DataError, nearest
from muster.data.federated import FederatedData
from muster.heterogeneity.columns import Columns, read_csv, read_parquet

#: Text files with cells between separators, whichever they are.
_TEXT = (".csv", ".tsv")
FORMATS = (*_TEXT, ".parquet", ".json", ".npy")
#: The usual names of columns: of counts, and of classes.
COUNT = "count"
LABELS = ("class", "label")
#: What names the columns on the command line, in the order in which tables are counted.
_OPTIONS = ("--client", "--label", "--attribute")
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
    #: What people should know about how they were read.
    remark: str = ""

    @classmethod
    def of(cls, fed: FederatedData) -> Counts:
        dataset, groups = fed.dataset, fed.group_counts
        table = fed.label_histograms[:, :, None] if groups is None else groups
        return cls(
            dataset.name,
            table,
            _names_of(fed),
            classes=dataset.class_names,
            attributes=dataset.attribute_names,
            has_attributes=groups is not None,
        )

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


@dataclass(frozen=True)
class ColumnNames:
    """What the columns of a table are called, where they do not have the usual names; None: as usual."""

    client: str | None = None
    label: str | None = None
    attribute: str | None = None

    @property
    def given(self) -> bool:
        return any((self.client, self.label, self.attribute))


def read_counts(path: Path, names: ColumnNames = ColumnNames()) -> Counts:  # noqa: B008 (frozen)
    """Read a table: .csv, .tsv, .parquet, .json or .npy (docs/inspect.md says how they look).

    `names` of columns are for tables with a row for each sample, or for each cell.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise DataError(f"cannot read counts from {path}", expected=f"a file that ends in {', '.join(FORMATS)}")
    if names.given and ending in (".json", ".npy"):
        raise DataError(f"{path} has no columns that could have names", fix="leave the names of columns out")
    remark = ""
    try:
        if ending in (".json", ".npy"):
            values, named = (_read_json if ending == ".json" else _read_npy)(path)
        else:
            columns = (read_csv if ending in _TEXT else read_parquet)(path)
            remark, (values, named) = columns.remark, _counted(columns, names)
        table = np.array(values, dtype=np.float64)
    except OSError as error:
        raise DataError(
            f"cannot read the counts {path}: {error.strerror or error}", fix="check the path"
        ) from error
    except (ValueError, TypeError, EOFError) as error:
        raise DataError(
            f"{path} does not hold a table of counts: {error}", expected=f"numbers, {_SHAPES}"
        ) from error
    if table.ndim not in (2, 3) or 0 in table.shape:
        raise DataError(f"the counts in {path} have the shape {table.shape}", expected=_SHAPES)
    has_attributes = table.ndim == 3
    table = table if has_attributes else table[:, :, None]
    for axis, (kind, given) in enumerate(named.items()):
        if given and len(given) != table.shape[axis]:
            raise DataError(f"{path} names {len(given)} {kind}, but its counts have {table.shape[axis]}")
    if not remark and (parts := table[(table > 1) & (table % 1 != 0)]).size:
        # Shares are at most 1; larger ones may be thousands with a point in them.
        remark = f"{path.name} has counts that are not whole numbers, such as {parts[0]:g}: check what they mean"
    return Counts(path.name, _whole(table), **named, has_attributes=has_attributes, remark=remark)


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


def _counted(columns: Columns, names: ColumnNames) -> _Read:
    """Columns as a table of counts, whichever of the three forms they have."""
    if columns.names and not len(columns):
        raise ValueError("below the heading there are no rows")
    client = names.client or "client"
    label = names.label or next((name for name in LABELS if name in columns.names), LABELS[0])
    attribute = names.attribute or ("attribute" if "attribute" in columns.names else None)
    by_name = client in columns.names and label in columns.names
    if names.given or by_name or COUNT in columns.names:
        keys = [client, label, *([attribute] if attribute else [])]
        for key in keys:
            if key not in columns.names:
                option = next(word for word, name in zip(_OPTIONS, keys, strict=False) if name == key)
                raise ValueError(
                    f"there is no column '{key}', which {option} can name; {nearest(key, columns.names)}"
                )
        return _long(columns, keys)
    if not columns.names:
        raise ValueError("it is empty")
    first, *classes = columns.names
    try:
        cells = [[_number(cell) for cell in columns.cells[name]] for name in classes]
        name, rows = Counter(columns.cells[first]).most_common(1)[0]
        if rows > 1:
            raise ValueError(f"'{name}' has {rows} rows")
    except ValueError as error:
        some = ", ".join(columns.names[:12]) + (", …" if len(columns.names) > 12 else "")
        raise ValueError(
            f"{error}. If it has one row per sample, name the columns with the client and the class with "
            f"--client and --label; its columns are: {some}"
        ) from error
    return np.array(cells).T, _names(columns.cells[first], classes)


def _long(columns: Columns, keys: list[str]) -> _Read:
    """A row for each cell, with its count, or for each sample; names keep the order in which they appear."""
    for key in keys:
        if "" in columns.cells[key]:
            raise ValueError(f"row {columns.cells[key].index('') + 2} has nothing in the column '{key}'")
    found = [list(dict.fromkeys(columns.cells[key])) for key in keys]
    positions = [{name: place for place, name in enumerate(known)} for known in found]
    places = tuple(
        np.array([at[cell] for cell in columns.cells[key]]) for at, key in zip(positions, keys, strict=True)
    )
    table = np.zeros([len(known) for known in found])
    counts = [_number(cell) for cell in columns.cells[COUNT]] if COUNT in columns.names else 1.0
    np.add.at(table, places, counts)
    return table, _names(*found)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"'{cell}' is not a number") from None


def _whole(table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As integers, where that loses nothing."""
    whole: Ints = np.nan_to_num(table).astype(np.int64)
    return whole if np.array_equal(whole, table) else table
