"""A comparison as text in the formats that people paste, and as files; the suffix says which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from muster.core.errors import ConfigError, OutputError
from muster.report.compare.comparison import Comparison
from muster.report.compare.ranking import Ranking, nemenyi_p
from muster.report.render import escape_latex, to_csv, to_data, to_latex, to_markdown, to_rich
from muster.report.tables import Table
from muster.results.files import to_json

#: Suffix of a file → format.
FORMATS = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def render(comparison: Comparison, form: str) -> str:
    """The whole comparison as `markdown`, `latex`, `csv` or `json`."""
    match form:
        case "markdown":
            return "\n\n".join(_markdown(comparison)) + "\n"
        case "latex":
            remarks = [f"% {escape_latex(remark)}" for remark in comparison.remarks]
            tables = [
                "\n" + to_latex(replace(table, title=_titled(table, problem)), _identifier(name, problem))
                for problem, name, table in _every_table(comparison)
            ]
            return "\n".join(["% Needs \\usepackage{booktabs}.", *remarks, *tables]) + "\n"
        case "csv":
            return to_csv(_every_table(comparison))
        case "json":
            return to_json(_data(comparison), indent=1) + "\n"
    raise ConfigError(f"unknown format '{form}'", expected=", ".join(FORMATS.values()))


def _every_table(comparison: Comparison) -> Iterator[tuple[str, str, Table]]:
    """(problem, name, table) of all tables; those over the problems have none."""
    for judged in comparison.judged:
        yield from ((judged.name, name, table) for name, table in judged.tables.items())
    yield from (("", name, table) for name, table in comparison.across.items())


def _titled(table: Table, problem: str) -> str:
    return f"{table.title} ({problem})" if problem else table.title


def _identifier(name: str, problem: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{name} {problem}").strip("-")


def _markdown(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.judged) > 1
    for judged in comparison.judged:
        if several and judged.tables:
            yield f"## {judged.name}"
        yield from map(to_markdown, judged.tables.values())
        if several and judged.remarks:
            yield _listed(judged.remarks)
    if comparison.across:
        yield "## Over all problems"
        yield from map(to_markdown, comparison.across.values())
    if remarks := comparison.general if several else comparison.remarks:
        yield "### Remarks\n\n" + _listed(remarks)


def _listed(remarks: Sequence[str]) -> str:
    return "\n".join(f"- {remark}" for remark in remarks)


def _data(comparison: Comparison) -> dict[str, object]:
    return {
        "options": asdict(comparison.options),
        "problems": [
            {
                "name": judged.name,
                "baseline": judged.baseline.name,
                "cases": [{"name": case.name, "seeds": case.seeds} for case in judged.cases],
                "tables": {name: to_data(table) for name, table in judged.tables.items()},
                "remarks": list(judged.remarks),
            }
            for judged in comparison.judged
        ],
        "across": {name: to_data(table) for name, table in comparison.across.items()},
        "ranking": _ranking_data(comparison.ranking),
        "remarks": list(comparison.general),
    }


def _ranking_data(ranking: Ranking | None) -> dict[str, object] | None:
    if ranking is None:
        return None
    return {
        "methods": list(ranking.methods),
        "mean_ranks": ranking.mean.tolist(),
        "wins": ranking.wins.tolist(),
        "friedman_p": ranking.friedman_p,
        "critical_difference": ranking.critical,
        "nemenyi_p": nemenyi_p(ranking.mean, ranking.problems).tolist(),
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
    """Tables and remarks, broken to a terminal's width; the tables over all problems last."""
    parts: list[RenderableType] = []
    several = len(comparison.judged) > 1
    for judged in comparison.judged:
        if several and judged.tables:
            parts += [Rule(Text(judged.name, style="bold"), align="left"), Text("")]
        parts += [to_rich(table, width) for table in judged.tables.values()]
        if several and judged.remarks:
            parts += [*map(_note, judged.remarks), Text("")]
    if comparison.across:
        parts += [Rule(Text("over all problems", style="bold"), align="left"), Text("")]
    parts += [to_rich(table, width) for table in comparison.across.values()]
    remarks = comparison.general if several else comparison.remarks
    return Group(*parts, *map(_note, remarks))


def _note(remark: str) -> Text:
    return Text.assemble(("Note: ", "yellow"), remark)
