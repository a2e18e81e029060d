"""Pages that scripts write into: words around tables stay."""

from __future__ import annotations

import pytest

from muster.core.errors import ConfigError
from muster.report.measured import BEGIN, END, write_measured


def test_words_around_the_tables_stay(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_measured(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ConfigError, match="no place"):
        write_measured(page, "new")
