"""Tables as Markdown, LaTeX, HTML, CSV, JSON, and for the terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from muster.report.html import part
from muster.report.tables import MISSING, Cell, Column, Mark, Table, markdown

LEGEND = {
    "markdown": "**Bold**: best; <ins>underlined</ins>: second best.",
    "latex": r"\textbf{Bold}: best; \underline{underlined}: second best.",
    "terminal": "*: best; °: second best.",
}

#: Characters.
_LONG_TEXT, _LONG_HEADING = 40, 12

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "−": "$-$",
    "∞": r"$\infty$",
    "–": "--",
    "…": r"\ldots{}",
    "°": r"$^\circ$",
    "²": "$^2$",
    **{letter: f"$\\{name}$" for letter, name in {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta"}.items()},
    **{letter: f"$\\{name}$" for letter, name in {"ε": "varepsilon", "η": "eta", "λ": "lambda"}.items()},
    **{letter: f"$\\{name}$" for letter, name in {"μ": "mu", "σ": "sigma", "τ": "tau", "Δ": "Delta"}.items()},
}


def cell_text(cell: Cell, column: Column, intervals: bool = False) -> str:
    """What a cell says, without its mark: a mean with its standard deviation, or with its interval."""
    if isinstance(cell.value, str):
        return cell.value
    if math.isnan(cell.value):
        return MISSING
    text = column.shown(cell.value).replace("-", "−")
    if cell.above:
        text = f"> {text}"
    if intervals and (ends := cell.interval):
        text += f" [{', '.join(column.shown(end).replace('-', '−') for end in ends)}]"
    elif cell.spread:
        text += f" ± {column.shown(cell.spread).removeprefix('+')}"
    return f"{text} ({cell.note})" if cell.note else text


def _texts(table: Table, shown: Callable[[Cell, str], str]) -> Iterator[list[str]]:
    for row in table.rows:
        yield [
            shown(cell, cell_text(cell, column, table.intervals))
            for cell, column in zip(row, table.columns, strict=True)
        ]


def marked_texts(table: Table) -> list[list[tuple[str, str]]]:
    """What every cell says, and its mark: "best", "second" or nothing."""
    marks = ([cell.mark.value if cell.mark else "" for cell in row] for row in table.rows)
    texts = _texts(table, lambda _, text: text)
    return [list(zip(said, marked, strict=True)) for said, marked in zip(texts, marks, strict=True)]


def _has_marks(table: Table) -> bool:
    return any(cell.mark for row in table.rows for cell in row)


# --- texts -------------------------------------------------------------------------------------------------------


def to_markdown(table: Table, level: int = 3) -> str:
    """Heading, table, notes."""

    def shown(cell: Cell, text: str) -> str:
        text = text.replace("|", "\\|")
        return {Mark.BEST: f"**{text}**", Mark.SECOND: f"<ins>{text}</ins>", None: text}[cell.mark]

    header = [column.heading.replace("|", "\\|") for column in table.columns]
    notes = [*([LEGEND["markdown"]] if _has_marks(table) else []), *table.notes]
    parts = [f"{'#' * level} {table.title}", markdown(header, list(_texts(table, shown))), " ".join(notes)]
    return "\n\n".join(part for part in parts if part)


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands: its special characters, and signs that its basic fonts do not have."""
    return "".join(_LATEX.get(character, character) for character in text)


def to_latex(table: Table, label: str = "") -> str:
    """A floating table in the style of booktabs (`\\usepackage{booktabs}`)."""

    def shown(cell: Cell, text: str) -> str:
        text = escape_latex(text)
        return {Mark.BEST: rf"\textbf{{{text}}}", Mark.SECOND: rf"\underline{{{text}}}", None: text}[cell.mark]

    legend = [LEGEND["latex"]] if _has_marks(table) else []
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{' '.join([escape_latex(table.title) + '.', *legend])}}}",
        *([rf"\label{{tab:{label}}}"] if label else []),
        r"\small\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{{_latex_columns(table)}}}",
        r"\toprule",
        " & ".join(_latex_heading(column) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in _texts(table, shown)),
        r"\bottomrule",
        r"\end{tabular}",
        *([rf"\par\smallskip\footnotesize {escape_latex(' '.join(table.notes))}"] if table.notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_columns(table: Table) -> str:
    """Numbers flush right; texts flush left, and broken into lines where they are long."""
    kinds = []
    for position, column in enumerate(table.columns):
        longest = max((len(cell_text(row[position], column, table.intervals)) for row in table.rows), default=0)
        long_text = r"p{0.2\linewidth}" if longest > _LONG_TEXT else "l"
        kinds.append(long_text if column.textual else "r")
    return "".join(kinds)


def _latex_heading(column: Column) -> str:
    """A heading on one line or two: numbers are much shorter than what they are called."""
    words = column.heading.split()
    if column.textual or len(column.heading) <= _LONG_HEADING or len(words) < 2:
        return escape_latex(column.heading)
    cuts = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    lines = min(cuts, key=lambda pair: max(map(len, pair)))
    upper, lower = map(escape_latex, lines)
    return rf"\begin{{tabular}}[b]{{@{{}}r@{{}}}}{upper}\\{lower}\end{{tabular}}"


def to_html(table: Table, places: Mapping[str, int] | None = None) -> str:
    """A table for a page of `muster.report.html`, with its notes; rows of a known case have its class."""
    rows = marked_texts(table)
    kinds = [f"case-{places[row[0][0]]}" if row[0][0] in places else "" for row in rows] if places else []
    return part("scores", table.columns, rows, table.notes, _has_marks(table), kinds)


# --- data --------------------------------------------------------------------------------------------------------


def to_csv(tables: Iterable[tuple[str, str, Table]]) -> str:
    """One line for each cell of (problem, name, table), in full precision and basic units (shares, bytes)."""
    text = io.StringIO()
    names = (
        "problem",
        "table",
        "row",
        "column",
        "value",
        "spread",
        "low",
        "high",
        "seeds",
        "mark",
        "above",
        "note",
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for problem, name, table in tables:
        for row in table.rows:
            for cell, column in zip(row[1:], table.columns[1:], strict=True):
                known = sum(not math.isnan(value) for value in cell.values)
                writer.writerow(
                    [
                        problem,
                        name,
                        row[0].value,
                        column.title,
                        "" if cell.value != cell.value else cell.value,
                        "" if cell.spread is None else cell.spread,
                        *(cell.interval or ("", "")),
                        known or "",
                        cell.mark.value if cell.mark else "",
                        "yes" if cell.above else "",
                        cell.note,
                    ]
                )
    return text.getvalue()


def to_data(table: Table) -> dict[str, Any]:
    """Plain types for JSON: columns, and a list of cells for each row."""
    return {
        "title": table.title,
        "columns": [
            {
                "title": column.title,
                "unit": column.unit,
                "scale": column.scale,
                "better": column.better.name.lower() if column.better else None,
            }
            for column in table.columns
        ],
        "rows": [[_cell_data(cell) for cell in row] for row in table.rows],
        "notes": list(table.notes),
    }


def _cell_data(cell: Cell) -> dict[str, Any]:
    facts = {
        "value": cell.value,
        "spread": cell.spread,
        "interval": list(cell.interval or ()),
        "values": list(cell.values),
        "mark": cell.mark.value if cell.mark else None,
        "above": cell.above,
        "note": cell.note,
    }
    return {"value": facts.pop("value")} | {name: fact for name, fact in facts.items() if fact}


# --- terminal ----------------------------------------------------------------------------------------------------

_GAP = 2
_SIGNS = {Mark.BEST: ("*", "bold green"), Mark.SECOND: ("°", "cyan"), None: (" ", "")}


def to_rich(table: Table, width: int = 80) -> Group:
    """The table for a terminal; one that is too wide is broken into parts that repeat the first column."""
    widths = _widths(table, width)
    parts: list[RichTable | Text] = []
    for number, positions in enumerate(_parts(widths, width)):
        parts.append(Text(table.title if number == 0 else f"{table.title} (continued)", style="bold"))
        parts.append(_rich_part(table, positions, widths))
    notes = [*([LEGEND["terminal"]] if _has_marks(table) else []), *table.notes]
    parts += [Text(note, style="dim") for note in notes]
    return Group(*parts, Text(""))


def _rich_part(table: Table, positions: Sequence[int], widths: Sequence[int]) -> RichTable:
    part = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for position in positions:
        column = table.columns[position]
        justify: JustifyMethod = "left" if column.textual else "right"
        part.add_column(Text(column.heading), justify=justify, width=widths[position])
    for row in table.rows:
        part.add_row(*(_signed(row[position], table.columns[position], table.intervals) for position in positions))
    return part


def _signed(cell: Cell, column: Column, intervals: bool) -> Text:
    sign, style = _SIGNS[cell.mark]
    text = Text(cell_text(cell, column, intervals), style=style)
    return text if column.textual else text.append(sign)


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """Positions of the columns of each part."""
    parts, used = [[0]], _GAP + widths[0]
    for position, own in enumerate(widths[1:], start=1):
        if used + _GAP + own > width and len(parts[-1]) > 1:
            parts.append([0])
            used = _GAP + widths[0]
        parts[-1].append(position)
        used += _GAP + own
    return parts


def _widths(table: Table, width: int) -> list[int]:
    """Numbers are never broken into lines; headings and long texts are."""
    widths: list[int] = []
    for position, column in enumerate(table.columns):
        longest = max((len(cell_text(row[position], column, table.intervals)) for row in table.rows), default=0)
        if column.textual:
            room = width - 2 * _GAP - widths[0] if widths else width // 2
            longest = min(longest, max(room, _LONG_HEADING), width // 2)
        heading = max(min(len(column.heading), _LONG_HEADING), *map(len, column.heading.split()))
        widths.append(max(longest + (not column.textual), heading))
    return widths
