"""Tables as text files: rows that are not what they seem are refused, with their line."""

from __future__ import annotations

import pytest

from muster.core.errors import DataError
from muster.data.sources._table import read_table

COLUMNS = ("picture", "text", "label")
GOOD = 'picture\ttext\tlabel\na.png\t\tfire\nb.png\t"say ""hello""\nto all"\tflood\n'


@pytest.fixture
def table(tmp_path):
    def write(content, name="train.tsv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def test_rows_by_name(table):
    rows = read_table(table(GOOD), COLUMNS, filled=("picture", "label"))
    assert [row["label"] for row in rows] == ["fire", "flood"]
    # A text may be empty, and may have lines and quotation marks of its own.
    assert [row["text"] for row in rows] == ["", 'say "hello"\nto all']


def test_commas_and_a_byte_order_mark(table):
    rows = read_table(table('\ufefftext,label\n"well, yes",0\n', "a.csv"), ("text", "label"))
    assert rows == [{"text": "well, yes", "label": "0"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("picture\ttext\nx\ty\n", "has no column 'label'"),
        ("", "has no column 'picture'"),
        ("picture\ttext\tlabel\n", "has no rows"),
        (GOOD + "c.png\n", r"line 5 has 1 columns"),
        # A tab inside the text: the label would be what is left of it.
        (GOOD + "c.png\tfire\tnear me\tflood\n", r"line 5 has 4 columns"),
        (GOOD + "c.png\ttext\t\n", "line 5: 'label' is empty"),
        (GOOD + 'c.png\t"never closed\tfire\nd.png\ttext\tfire\n', "told apart into columns"),
        # Closed by the next row's: both rows would become one.
        (GOOD + 'c.png\t"opened\tfire\nd.png\t"closed" now\tfire\n', "told apart into columns"),
        (GOOD.encode() + b"c.png\tw\xe4ter\tfire\n", "not text in UTF-8"),
    ],
)
def test_rows_that_are_not_what_they_seem(table, content, message):
    with pytest.raises(DataError, match=message):
        read_table(table(content), COLUMNS, filled=("picture", "label"))
