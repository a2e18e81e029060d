"""Pages that are one file: no network, no scripts, light and dark, readable on a phone."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from PIL import Image

from muster.report.style import muster_style

_CSS = """
:root { color-scheme: light dark; --text: #1b1f23; --quiet: #57606a; --line: #d0d7de; --back: #ffffff;
  --card: #f6f8fa; --accent: #0072b2; --warn: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --quiet: #aab2ba; --line: #3a424a;
  --back: #14181c; --card: #1d2328; --accent: #56b4e9; --warn: #e8702a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem 1.2rem 3rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .6rem 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.card h3 { margin: 0 0 .3rem; font-size: 1rem; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
figure img.dark { display: none; }
@media screen and (prefers-color-scheme: dark) {
  figure img.dark { display: block; }
  figure img.light { display: none; }
}
figure.large img { min-width: 44rem; }
.wide { overflow-x: auto; }
.warnings { border-left: .3rem solid var(--warn); padding-left: 1.6rem; }
.warnings li { margin: .3rem 0; max-width: 60rem; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem;
  overflow-x: auto; font-size: .85rem; line-height: 1.4; max-height: 30rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th:last-child:not(.number), td:last-child:not(.number) { min-width: 12rem; }
td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
td:first-child { min-width: 8rem; overflow-wrap: break-word; }
code { color: var(--accent); font-size: .95em; }
@media print {
  html { font-size: 11px; }
  body { max-width: none; padding: 0; font-size: 1rem; }
  nav, .download { display: none; }
  .card, figure, tr { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
  .cards { grid-template-columns: 1fr 1fr; }
  .cards > .full { grid-column: 1 / -1; }
  .wide { overflow: visible; }
  figure.large img { min-width: 0; }
  pre { max-height: none; white-space: pre-wrap; overflow-wrap: anywhere; }
  table { font-size: .8rem; }
}
.full { grid-column: 1 / -1; }
"""
#: Inches; wider pictures have several panels, and scroll in their box on a phone.
_LARGE = 6.0


def page(title: str, body: str) -> str:
    """A whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; `numbers` are the columns that are set flush right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if column in numbers else ''}>{marked(cell)}</{tag}>"
            for column, cell in enumerate(row)
        )

    lines = [f"<tr>{cells('th', header)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def marked(text: str) -> str:
    """Escaped text in which `code` is set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def figure(draw: Callable[[], Figure], alt: str) -> str:
    """A card with a picture in a light and a dark version; `draw` makes it in the style that is set."""
    (light, inches), (dark, _) = (_drawn(draw, dark=dark) for dark in (False, True))
    large = inches > _LARGE
    # Two pictures and a style sheet, not <picture>: what is printed from a dark screen must be the light one.
    images = "".join(
        f'<img class="{ground}" src="{data_uri(content)}" alt="{html.escape(alt)}">'
        for ground, content in (("light", light), ("dark", dark))
    )
    picture = f"<figure{' class=large' if large else ''}>{images}</figure>"
    return f'<div class="card{" wide full" if large else ""}">{picture}</div>'


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
    uri = data_uri(content.encode(), "text/plain;charset=utf-8")
    return f'<a class="download" download="{html.escape(name)}" href="{uri}">Save {html.escape(name)}</a>'


def listed(items: Sequence[str], kind: str = "") -> str:
    """A list; `kind` is its class."""
    lines = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{lines}</ul>' if kind else f"<ul>{lines}</ul>"


def block(text: str) -> str:
    """Text as it stands: files, commands."""
    return f"<pre>{html.escape(text)}</pre>"
