"""A comparison as text in the formats that people paste, and as files; the suffix says which."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Group
from rich.text import Text

from muster.core.errors import ConfigError, OutputError
from muster.report.compare.comparison import Comparison
from muster.report.render import escape_latex, to_csv, to_data, to_latex, to_markdown, to_rich
from muster.results.files import to_json

#: Suffix of a file → format.
FORMATS = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def render(comparison: Comparison, form: str) -> str:
    """The whole comparison as `markdown`, `latex`, `csv` or `json`."""
    tables, remarks = comparison.tables, comparison.remarks
    match form:
        case "markdown":
            parts = [to_markdown(table) for table in tables.values()]
            if remarks:
                parts.append("### Remarks\n\n" + "\n".join(f"- {remark}" for remark in remarks))
            return "\n\n".join(parts) + "\n"
        case "latex":
            head = ["% Needs \\usepackage{booktabs}.", *(f"% {escape_latex(remark)}" for remark in remarks)]
            return "\n".join([*head, *("\n" + to_latex(table, name) for name, table in tables.items())]) + "\n"
        case "csv":
            return to_csv(tables)
        case "json":
            return to_json(_data(comparison), indent=1) + "\n"
    raise ConfigError(f"unknown format '{form}'", expected=", ".join(FORMATS.values()))


def _data(comparison: Comparison) -> dict[str, object]:
    return {
        "options": asdict(comparison.options),
        "baseline": comparison.baseline.name,
        "cases": [{"name": case.name, "seeds": case.seeds} for case in comparison.cases],
        "tables": {name: to_data(table) for name, table in comparison.tables.items()},
        "remarks": list(comparison.remarks),
    }


def format_of(path: Path) -> str:
    """The format that a file's suffix asks for."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"unknown format of {path}", expected=f"a name that ends in {', '.join(FORMATS)}")
    return FORMATS[path.suffix]


def write_comparison(comparison: Comparison, path: Path) -> None:
    text = render(comparison, format_of(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --out"
        ) from error


def for_terminal(comparison: Comparison, width: int) -> Group:
    """Tables and remarks, broken to a terminal's width."""
    remarks = [Text.assemble(("Note: ", "yellow"), remark) for remark in comparison.remarks]
    return Group(*(to_rich(table, width) for table in comparison.tables.values()), *remarks)
