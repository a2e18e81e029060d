"""The report: what was run, tables, pictures, settings, environment, warnings, how to repeat it. One HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from muster._version import __version__
from muster.config.toml import to_toml, toml_value
from muster.console.watched import tracked
from muster.core.errors import OutputError
from muster.report import html
from muster.report.compare import Comparison, Options, compare
from muster.report.compare.across import methods_of
from muster.report.gallery import MAX_LINES, MAX_MAPS, drawn, gallery
from muster.report.headline import headlines
from muster.report.render import to_html
from muster.report.tables import Table
from muster.report.warnings import warnings
from muster.results.cases import Case, seed_of
from muster.results.settings import own_settings, recipe, shared_settings
from muster.server.result import Result


@dataclass(frozen=True)
class Section:
    """A part of the page: `id` is its anchor."""

    id: str
    title: str
    body: str


def report_page(
    results: Sequence[Result],
    options: Options | None = None,
    *,
    title: str = "",
    remarks: Sequence[str] = (),
    progress: bool | None = None,
) -> str:
    """The whole page. Runs that are not finished are named, and compared only if the options say so.

    `remarks` are warnings about what the results themselves do not tell, such as runs that failed at once.
    `progress`: True shows how many pictures are drawn, False does not; None does in a notebook and a terminal.
    """
    comparison = compare(results, options)
    title = title or _title(comparison)
    contested, uncontested = _headlines(comparison)
    sections = [
        *_warned([*remarks, *comparison.remarks, *warnings(results)]),
        Section("tables", "Tables", _tables(comparison)),
        Section("runs", "What was run", _runs(results, comparison)),
        Section("pictures", "Pictures", _pictures(comparison, progress)),
        Section("settings", "Settings", _settings(results, comparison)),
        Section("environment", "Environment", _environment(results)),
        Section("repeat", "How to repeat it", _repeat(comparison)),
    ]
    return html.rendered(
        "report.html",
        title=title,
        headlines=contested,
        uncontested=uncontested,
        summary=_summary(results, comparison),
        made=f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC with Muster {__version__}.",
        sections=sections,
        cases=[case.name for case in comparison.cases],
    )


def _headlines(comparison: Comparison) -> tuple[list[list[str]], list[list[str]]]:
    """Those of problems in which methods compete, and those of the others, unless there is nothing else."""
    told = [
        (len(one.cases) > 1, sentences)
        for one, sentences in zip(comparison.judged, headlines(comparison), strict=True)
    ]
    contested = [sentences for several, sentences in told if several]
    if not contested:
        return [sentences for _, sentences in told], []
    return contested, [sentences for several, sentences in told if not several]


def write_report(
    results: Sequence[Result],
    path: Path | str,
    options: Options | None = None,
    *,
    title: str = "",
    remarks: Sequence[str] = (),
    progress: bool | None = None,
) -> Path:
    """Write the page to a file; its path."""
    path = Path(path)
    content = report_page(results, options, title=title, remarks=remarks, progress=progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --out"
        ) from error
    return path


# --- what was run ----------------------------------------------------------------------------------------


def _title(comparison: Comparison) -> str:
    if len(comparison.cases) == 1:
        return comparison.cases[0].name
    if len(comparison.judged) > 1:
        return f"{len(methods_of([one.problem for one in comparison.judged]))} methods on {_problems(comparison)}"
    return f"{len(comparison.cases)} cases compared"


def _problems(comparison: Comparison) -> str:
    return _counted([len(comparison.judged)], "problem", "problems")


def _summary(results: Sequence[Result], comparison: Comparison) -> str:
    """The comparison in a few sentences."""
    runs = list({id(run): run for case in comparison.cases for run in case.runs}.values())
    data = ", ".join(sorted({str(_component(run, "data", "source")) for run in runs}))
    models = ", ".join(sorted({str(_component(run, "model", "name")) for run in runs}))
    seeds = _counted([len(case.runs) for case in comparison.cases], "seed", "seeds")
    rounds = _counted([len(run.records) for run in runs], "round", "rounds")
    clients = _counted([run.history.clients for run in runs], "client", "clients")
    text = (
        f"{_counted([len(comparison.cases)], 'case', 'cases')} with {seeds} each on {data}: {clients}, {rounds}, "
    )
    text += f"model {models}; {_counted([len(runs)], 'run', 'runs')} in all."
    if len(comparison.judged) > 1:
        names = "; ".join(judged.name for judged in comparison.judged)
        text += f" {_problems(comparison).capitalize()}, each judged on its own: {names}."
    absent = len(results) - len(runs)
    return f"{text} {absent} more of the {len(results)} runs are not compared (see warnings)." if absent else text


def _component(run: Result, section: str, key: str) -> object:
    settings = run.config.get(section, {})
    return settings.get(key, settings.get("data", settings.get("object", "?"))) if settings else "?"


def _runs(results: Sequence[Result], comparison: Comparison) -> str:
    places = {id(run): place for place, case in enumerate(comparison.cases) for run in case.runs}
    kinds = []
    header = ("run", "seed", "rounds", "status", "accuracy", "trainings", "time", "fingerprint", "ended")
    rows = []
    place = {name: number for number, name in reversed(list(enumerate(run.name for run in results)))}
    for run in sorted(results, key=lambda run: (place[run.name], seed_of(run))):
        origin, costs = run.provenance, run.ledger.total()
        kinds.append(f"case-{places[id(run)]}" if id(run) in places else "")
        seconds = origin.seconds or costs.seconds
        rows.append(
            [
                run.name,
                str(seed_of(run)),
                f"{len(run.records):,}",
                origin.status or ("complete" if run.complete else "not complete"),
                _percent(run),
                f"{costs.client_trainings:,}",
                f"{seconds:,.1f} s" if seconds else "–",
                origin.fingerprint[:8] or "–",
                f"{datetime.fromtimestamp(origin.ended, UTC):%Y-%m-%d\u00a0%H:%M}" if origin.ended else "–",
            ]
        )
    return html.table(header, rows, numbers=(1, 2, 4, 5, 6), kinds=kinds)


def _percent(run: Result) -> str:
    values = [row["accuracy"] for row in run.metrics if row.get("accuracy", float("nan")) == row.get("accuracy")]
    return f"{values[-1]:.1%}" if values else "–"


def _warned(found: Sequence[str]) -> Iterator[Section]:
    if found:
        yield Section("warnings", "Warnings", html.listed(found, "warnings"))


# --- tables and pictures ---------------------------------------------------------------------------------


def _tables(comparison: Comparison) -> str:
    parts = [_titled(3, table, {}) for table in comparison.across.values()]
    before = 0
    for judged in comparison.judged:
        if judged.name:
            parts.append(html.heading(3, judged.name))
        # As in `comparison.cases`: problem after problem.
        places = {case.name: before + place for place, case in enumerate(judged.cases)}
        parts += [_titled(4 if judged.name else 3, table, places) for table in judged.tables.values()]
        before += len(judged.cases)
    return "\n".join(parts)


def _titled(level: int, table: Table, places: Mapping[str, int]) -> str:
    return f"{html.heading(level, table.title)}\n{to_html(table, places)}"


def _pictures(comparison: Comparison, progress: bool | None) -> str:
    parts = []
    metric, most = comparison.options.metric, max(len(judged.cases) for judged in comparison.judged)
    if any(len(drawn(judged, metric)) < len(judged.cases) for judged in comparison.judged):
        limit = f"The {MAX_LINES} best of {most} cases by {metric} at the end; the others are in the tables."
        parts.append(html.paragraph(limit, "quiet"))
    pictures_of_all = tracked(list(gallery(comparison)), "pictures", progress)
    for problem, shown in groupby(pictures_of_all, key=lambda picture: picture.problem):
        if problem:
            parts.append(html.heading(3, problem))
        for title, pictures in groupby(shown, key=lambda picture: picture.section):
            parts.append(html.heading(4 if problem else 3, title))
            if title == "Who took part when" and most > MAX_MAPS:
                parts.append(html.paragraph(f"The first seed of the first {MAX_MAPS} cases.", "quiet"))
            parts.append(html.cards([html.figure(picture.draw, picture.alt) for picture in pictures]))
    return "\n".join(parts)


# --- settings, environment, repetition -------------------------------------------------------------------


def _settings(results: Sequence[Result], comparison: Comparison) -> str:
    shared = shared_settings(results)
    parts = [html.heading(3, "Shared by all runs"), html.block(to_toml(shared))]
    own = {case.name: _case_settings(case, results) for case in comparison.cases}
    keys = list(dict.fromkeys(key for settings in own.values() for key in settings))
    if keys:
        rows = [
            [name, *(toml_value(row[key]) if row.get(key) is not None else "–" for key in keys)]
            for name, row in own.items()
        ]
        parts += [html.heading(3, "Different between cases"), html.table(["case", *keys], rows)]
    return "\n".join(parts)


def _case_settings(case: Case, results: Sequence[Result]) -> dict[str, object]:
    """What a case does not share with all runs; its seeds together."""
    own = own_settings(case.runs[0], results)
    return own | {"seed": case.seeds} if "seed" in own else own


def _environment(results: Sequence[Result]) -> str:
    kinds: dict[tuple[tuple[str, str], ...], int] = {}
    for run in results:
        facts = {"code": run.provenance.code_version or "not recorded"} | run.provenance.environment
        kinds[tuple(facts.items())] = kinds.get(tuple(facts.items()), 0) + 1
    keys = list(dict.fromkeys(key for facts in kinds for key, _ in facts))
    rows = [[f"{count}", *(dict(facts).get(key, "–") for key in keys)] for facts, count in kinds.items()]
    return html.table(["runs", *keys], rows, numbers=(0,))


def _repeat(comparison: Comparison) -> str:
    again = recipe(comparison.cases)
    versions = sorted({run.provenance.code_version for case in comparison.cases for run in case.runs} - {""})
    parts = [html.paragraph(f"The code was Muster {', '.join(versions)}.")] if versions else []
    if again is None:
        where = "Some of the parts were objects made in Python (see the settings)"
        return "\n".join([*parts, html.paragraph(f"{where}: repeat it with the script that made them.")])
    parts += [
        html.paragraph(f"With `{again.file_name}`:"),
        html.block(again.content),
        html.download(again.file_name, again.content),
        html.paragraph("these commands run everything again, with the same bits on the same platform:"),
        html.block("\n".join(again.commands)),
    ]
    return "\n".join(parts)


def _counted(counts: Sequence[int], one: str, many: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,} {one if high == 1 else many}" if low == high else f"{low:,} to {high:,} {many}"
