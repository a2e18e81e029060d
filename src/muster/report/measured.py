"""Tables in a page: what was measured stands between two marks, the words around it are written by people."""

from __future__ import annotations

from pathlib import Path

from muster.core.errors import ConfigError

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def has_place(page: Path) -> bool:
    """Whether a page has marks, right or wrong."""
    return page.exists() and any(mark in page.read_text(encoding="utf-8") for mark in (BEGIN, END))


def with_measured(page: Path, content: str) -> str:
    """The text of a page with something else between its two marks."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {page.stem}\n\n{BEGIN}\n{END}\n"
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"{page} has no place for the tables", expected=f"one {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{content.strip()}\n\n{END}{rest.split(END)[1]}"


def write_measured(page: Path, content: str) -> None:
    """Replace what stands between the two marks of a page."""
    text = with_measured(page, content)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    print(f"Written: {page}")
