"""Tables as people have them: CSV with commas, semicolons or tabs, in UTF-8 or Latin-1, and Parquet."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import DataError

#: What cells of a CSV file may be separated by; of equally frequent ones the first.
_SEPARATORS = (",", ";", "\t", "|")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Columns:
    """A table's columns by name, in their order, with cells as text; cells that are empty are empty texts."""

    cells: dict[str, list[str]]
    #: What people should know about how it was read.
    remark: str = ""

    @property
    def names(self) -> list[str]:
        return list(self.cells)

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()), ()))


def read_csv(path: Path) -> Columns:
    """A CSV file with a heading; ValueError where rows do not fit it."""
    text, remark = _decoded(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(_SEPARATORS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if _is_filled(row)]
    except csv.Error as error:
        raise ValueError(f"its cells cannot be told apart: {error}") from error
    if not rows:
        return Columns({}, remark)
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the heading has the column '{twice}' twice")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} cells, the heading has {len(names)}")
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else ([] for _ in names)
    return Columns(
        {name: [cell.strip() for cell in column] for name, column in zip(names, columns, strict=True)}, remark
    )


def read_parquet(path: Path) -> Columns:
    """A Parquet file. Columns that hold neither numbers nor texts are left out."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(
            f"{path} is a Parquet file, and pyarrow, which reads it, is not installed",
            fix="pip install pyarrow; or save the table as CSV",
        ) from error
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    kept = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    # pandas writes the index behind all columns, but shows it before them.
    index = [name for name in (table.schema.pandas_metadata or {}).get("index_columns", ()) if name in kept]
    columns = [name for name in kept if name not in index]
    if columns and (columns[0] == "client" or not pa.types.is_primitive(table.schema.field(columns[0]).type)):
        # Clients stand in a column: numbers in an index without a name are only those of rows.
        index = [
            name
            for name in index
            if not (name.startswith("__index_level_") and pa.types.is_integer(table.schema.field(name).type))
        ]
    kept = [*index, *columns]
    return Columns(
        {name: ["" if value is None else str(value).strip() for value in table[name].to_pylist()] for name in kept}
    )


def _decoded(path: Path) -> tuple[str, str]:
    """The text of a file, and a remark where it is not in UTF-8."""
    content = path.read_bytes()
    if content.startswith(_UTF16):
        return content.decode("utf-16"), ""
    try:
        return content.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        if b"\0" in content:
            raise ValueError("it is no text") from None
        return content.decode("latin-1"), f"{path.name} is not in UTF-8: it was read as Latin-1"


def _is_filled(row: list[str]) -> bool:
    return any(cell.strip() for cell in row)
