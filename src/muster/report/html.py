"""Pages that are one file: no network, no scripts, light and dark, readable on a phone.

What they look like is in the templates beside; everything that is put into them is escaped there. Only pieces of a
line or two (a heading before a table, what a notebook shows of an object) are put together where they are made: a
template for each would be longer, and farther from what fills it.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from muster.report.style import muster_style, page_palette

#: Inches; wider pictures have several panels, and scroll in their box on a phone.
_LARGE = 6.0


def page(title: str, body: str) -> str:
    """A whole document around a body that is markup already."""
    return rendered("page.html", title=title, body=Markup(body))


def rendered(template: str, **values: Any) -> str:
    """A document from its template."""
    return _environment().get_template(template).render(palette=Markup(page_palette()), **values)


def part(name: str, *values: Any, template: str = "parts.html") -> str:
    """A piece of a page: a macro of a template."""
    return str(getattr(_environment().get_template(template).module, name)(*values))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("muster.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters["marked"] = lambda text: Markup(marked(text))
    made.filters["parted"] = parted
    return made


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = (), kinds: Sequence[str] = ()
) -> str:
    """A table; `numbers` are the columns that are set flush right, `kinds` the classes of rows."""
    return part("table", header, rows, numbers, kinds)


def marked(text: str) -> str:
    """Escaped text in which `code` is set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def parted(text: str) -> tuple[str, str]:
    """A mean and its interval, which is set below it: "91.9 [85.9, 98.0]" is too wide for a phone."""
    found = re.fullmatch(r"(\S+) (\[.*\])", text)
    return (found[1], found[2]) if found else (text, "")


def figure(draw: Callable[[], Figure], alt: str) -> str:
    """A card with a picture in a light and a dark version; `draw` makes it in the style that is set."""
    (light, inches), (dark, _) = (_drawn(draw, dark=dark) for dark in (False, True))
    # Two pictures and a style sheet, not <picture>: what is printed from a dark screen must be the light one.
    return part("figure", [("light", data_uri(light)), ("dark", data_uri(dark))], alt, inches > _LARGE)


def _drawn(draw: Callable[[], Figure], *, dark: bool) -> tuple[bytes, float]:
    """A PNG, and its width in inches. A palette of 256 colours makes it three times smaller."""
    full, small = io.BytesIO(), io.BytesIO()
    with muster_style(dark=dark):
        drawn = draw()
        drawn.savefig(full, format="png", transparent=True)
    Image.open(full).quantize(256, method=Image.Quantize.FASTOCTREE).save(small, format="png", optimize=True)
    return small.getvalue(), drawn.get_figwidth()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """Content that needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def download(name: str, content: str) -> str:
    """A link that saves a text as a file."""
    return part("download", name, data_uri(content.encode(), "text/plain;charset=utf-8"))


def listed(items: Sequence[str], kind: str = "") -> str:
    """A list; `kind` is its class."""
    return part("listed", items, kind)


def block(text: str) -> str:
    """Text as it stands: files, commands."""
    return part("block", text)


def heading(level: int, text: str) -> str:
    """A heading; `code` is set as such, as in paragraphs."""
    return part("heading", level, text)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is its class."""
    return part("paragraph", text, kind)


def cards(items: Sequence[str]) -> str:
    """Pieces side by side, as many as there is room for."""
    return part("cards", items)
