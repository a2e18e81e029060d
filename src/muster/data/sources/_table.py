"""Tables as text files, with commas (`.csv`) or tabs (`.tsv`) between their columns."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from muster.core.errors import DataError


def read_table(file: Path, columns: Collection[str], filled: Collection[str] = ()) -> list[dict[str, str]]:
    """The rows of a table that must have these columns; those in `filled` may not be empty in any row.

    A row that has lost or gained a column is refused: its values would be taken for those of other columns.
    """
    rows = list[dict[str, str]]()
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            # Strict: a quotation mark that is never closed would swallow all rows up to the next one.
            reader = csv.DictReader(stream, delimiter="\t" if file.suffix == ".tsv" else ",", strict=True)
            names = list(reader.fieldnames or ())
            if absent := [name for name in columns if name not in names]:
                raise DataError(
                    f"{file} has no column '{absent[0]}' (it has: {', '.join(names)})",
                    expected=f"the columns {', '.join(columns)}",
                )
            for row in reader:
                _check_row(f"{file}, line {reader.line_num}", row, len(names), filled)
                rows.append({name: row[name] for name in names})
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not text in UTF-8: {error.reason}", fix="write it in UTF-8") from error
    except csv.Error as error:
        raise DataError(
            f"{file}, line {reader.line_num} cannot be told apart into columns: {error}",
            fix='a text with quotation marks has one around it, too, and those inside doubled: "say ""hello"""',
        ) from error
    if not rows:
        raise DataError(f"{file} has no rows", expected="one for each sample, below the names of the columns")
    return rows


def _check_row(where: str, row: dict[str, str], width: int, filled: Collection[str]) -> None:
    # The reader's ways to say that there is less, or more, than the first line has names for.
    lacking = sum(value is None for value in row.values())
    more = [value for value in row.get(None, ()) if value]  # type: ignore[call-overload]
    if lacking or more:
        raise DataError(
            f"{where} has {width - lacking + len(more)} columns", expected=f"{width}, as the first line has"
        )
    if empty := [name for name in filled if not row[name].strip()]:
        raise DataError(
            f"{where}: '{empty[0]}' is empty", fix="fill it in, or take the row out: nothing stands for it"
        )
