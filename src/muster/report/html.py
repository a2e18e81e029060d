"""Pages that are one file: no network, no scripts, light and dark, readable on a phone."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from muster.report.style import muster_style

_CSS = """
:root { color-scheme: light dark; --text: #1b1f23; --quiet: #57606a; --line: #d0d7de; --back: #ffffff;
  --card: #f6f8fa; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --quiet: #aab2ba; --line: #3a424a;
  --back: #14181c; --card: #1d2328; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem 1.2rem 3rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .6rem 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.card h3 { margin: 0 0 .3rem; font-size: 1rem; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th:last-child:not(.number), td:last-child:not(.number) { min-width: 8rem; }
td.number, th.number { text-align: right; }
code { color: var(--accent); font-size: .95em; }
"""


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
    """A picture in a light and a dark version, inside the page; `draw` makes it in the style that is set."""
    light, dark = (_data_uri(draw, dark=dark) for dark in (False, True))
    return (
        f'<figure><picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{html.escape(alt)}"></picture></figure>'
    )


def _data_uri(draw: Callable[[], Figure], *, dark: bool) -> str:
    content = io.BytesIO()
    with muster_style(dark=dark):
        draw().savefig(content, format="png", transparent=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
