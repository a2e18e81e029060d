"""The league's page: ranks at equal budgets, measures besides accuracy, every problem, how to repeat it."""

from __future__ import annotations

import html as escaping
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from muster._version import __version__
from muster.core.errors import ConfigError, OutputError
from muster.league.outcome import LeagueTable, Outcome
from muster.report import html
from muster.report.compare.across import methods_of
from muster.report.compare.comparison import with_intervals
from muster.report.compare.measures import UNITS, disclosures, known_metrics, overhead, participation, value
from muster.report.plots import draw_ranks, save_figure
from muster.report.render import to_html, to_markdown
from muster.report.tables import Better, Cell, Column, Table, from_columns, over_seeds, text_column
from muster.results.cases import Case
from muster.server.result import Result


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Picture:
    name: str
    alt: str
    draw: Callable[[], Figure]


Part = Heading | Picture | Table | str


def parts(outcome: Outcome, command: str) -> list[Part]:
    """What the page says, in order; texts are paragraphs."""
    plan = outcome.plan
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) != 1)}"
    found: list[Part] = [
        f"{len(plan.problems)} problems, {seeds} each, scale {plan.scale_name!r}, Muster {__version__}. Scores "
        f"are means of the last {plan.league.last} evaluations, taken when every method has spent as many client "
        "trainings as the cheapest one in all. Repeat it with:",
        f"`{command}`",
    ]
    for table in outcome.tables:
        found += _of_table(table)
    found += [*_tuning(outcome), *_absent(outcome)]
    return found


def _of_table(table: LeagueTable) -> Iterator[Part]:
    name, comparison = table.table.name, table.comparison
    yield Heading(name)
    if comparison.ranking is not None:
        title = f"accuracy over {comparison.ranking.problems} problems, equal client trainings"
        ends = zip(comparison.ranking.methods, comparison.ranking.mean, strict=True)
        alt = "Mean ranks: " + ", ".join(f"{method} {rank:.2f}" for method, rank in ends)
        yield Picture(f"{name}-ranks", alt, partial(draw_ranks, comparison.ranking, title))
    yield from (
        replace(own, title=f"{own.title}, at equal client trainings") for own in comparison.across.values()
    )
    if table.by_unit:
        yield by_units(table)
    yield beside(table)
    yield Heading("Every problem", 3)
    for judged in comparison.judged:
        wanted = [judged.tables[key] for key in ("scores", "significance") if key in judged.tables]
        prefix = f"{judged.name}: " if judged.name else ""
        yield from (replace(own, title=f"{prefix}{own.title}") for own in wanted)


def by_units(table: LeagueTable) -> Table:
    """Mean ranks when all have spent equally much of each unit of work."""
    methods = methods_of([judged.problem for judged in table.comparison.judged])
    columns: list[tuple[Column, Sequence[Cell]]] = [(text_column("method"), [Cell(name) for name in methods])]
    for unit, comparison in table.by_unit.items():
        ranking = comparison.ranking
        if ranking is None:
            continue
        mean = dict(zip(ranking.methods, ranking.mean, strict=True))
        title = f"{UNITS[unit].many} ({ranking.problems} problems)"
        cells = [Cell(float(mean[name])) if name in mean else Cell() for name in methods]
        columns.append((Column(title, form=".2f", better=Better.LOWER), cells))
    notes = ["Mean rank at equal work, 1 is best. Virtual time is known where a problem has devices."]
    return from_columns("Mean ranks by unit of work", columns, notes)


def beside(table: LeagueTable) -> Table:
    """Measures besides accuracy: means over problems of each problem's mean over seeds."""
    problems = [judged.problem for judged in table.comparison.judged]
    methods = methods_of(problems)
    cases = {name: [c for problem in problems for c in problem.cases if c.name == name] for name in methods}

    def over_problems(measure: Callable[[Result], float]) -> list[Cell]:
        return [over_seeds(fmean(map(measure, case.runs)) for case in cases[name]) for name in methods]

    everybody = [run for problem in problems for run in problem.runs]
    columns: list[tuple[Column, Sequence[Cell]]] = [(text_column("method"), [Cell(name) for name in methods])]
    for metric, title in (("client_accuracy_worst_tenth", "worst tenth of clients"),):
        if all(metric in known_metrics(run) for run in everybody):
            column = Column(title, "%", 100.0, ".1f", Better.HIGHER)
            columns.append((column, over_problems(partial(value, metric=metric))))
    columns += [
        (
            Column("Gini of participation", form=".2f", better=Better.LOWER),
            over_problems(lambda run: participation(run)["gini"]),
        ),
        (
            Column("extra bytes per round", "kB", 1e-3, ",.1f", Better.LOWER),
            over_problems(lambda run: overhead(run).extra_down + overhead(run).extra_up),
        ),
        (
            Column("server per round", "ms", 1000.0, ",.1f", Better.LOWER),
            over_problems(lambda run: overhead(run).server_seconds),
        ),
        (text_column("clients tell besides the update"), [Cell(_told(cases[name])) for name in methods]),
    ]
    notes = (
        "Means over problems at the end of the runs, with intervals over problems. Gini: of the rounds in which "
        "each client took part, 0 is even. Extra bytes: beyond one model to and from every client "
        "that trains. Server: "
        "selection and aggregation, on the machine that ran it.",
    )
    return with_intervals(from_columns("Besides accuracy", columns, notes))


def _told(cases: Sequence[Case]) -> str:
    kinds = sorted({kind for case in cases for run in case.runs for kind in disclosures(run)})
    return "; ".join(kinds) or "nothing"


def _tuning(outcome: Outcome) -> Iterator[Part]:
    plan = outcome.plan
    yield Heading("Tuning")
    if not plan.scale.tuning:
        yield "Nothing was tuned at this scale: methods have the options of the league's file, otherwise defaults."
        return
    seeds = ", ".join(map(str, plan.league.tuning_seeds))
    yield (
        f"Where the league's file has a grid for a method, its options were chosen for each problem on the seeds "
        f"{seeds}, which no other run has, by accuracy at equal client trainings. All other options are defaults."
    )
    rows = [
        (table, method, problem, ", ".join(f"{key} = {point}" for key, point in chosen.items()))
        for (table, problem, method), chosen in outcome.chosen.items()
    ]
    titles = ("table", "method", "problem", "chosen")
    yield from_columns(
        "Chosen options",
        [(text_column(title), [Cell(row[at]) for row in rows]) for at, title in enumerate(titles)],
    )


def _absent(outcome: Outcome) -> Iterator[Part]:
    plan = outcome.plan
    left = [
        f"{method} ({table.name}): {why}"
        for table in plan.league.tables
        for method, why in table.leave_out.items()
    ]
    missing = [f"{name}: {why}" for name, why in {**plan.absent, **outcome.short, **outcome.failed}.items()]
    if left or missing:
        yield Heading("What is missing")
        yield from left
        yield from missing


# --- files -------------------------------------------------------------------------------------------------------


def write_page(outcome: Outcome, path: Path, command: str) -> Path:
    """Write the page as .html (one file) or .md (with its pictures beside it)."""
    if path.suffix not in (".html", ".md"):
        raise ConfigError(f"unknown format of {path}", expected="a name that ends in .html or .md")
    title = f"The {outcome.plan.league.name}: {outcome.plan.scale_name}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = parts(outcome, command)
        text = _html(title, found) if path.suffix == ".html" else _markdown(title, found, path)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --out"
        ) from error
    return path


def _html(title: str, found: Sequence[Part]) -> str:
    body = [f"<h1>{html.marked(title)}</h1>"]
    for part in found:
        match part:
            case Heading(text, level):
                body.append(f"<h{level}>{escaping.escape(text)}</h{level}>")
            case Picture(_, alt, draw):
                body.append(html.figure(draw, alt))
            case Table():
                body.append(f"<h3>{escaping.escape(part.title)}</h3>\n{to_html(part)}")
            case str():
                body.append(f"<p>{html.marked(part)}</p>")
    return html.page(title, "\n".join(body))


def _markdown(title: str, found: Sequence[Part], path: Path) -> str:
    lines = [f"# {title}"]
    for part in found:
        match part:
            case Heading(text, level):
                lines.append(f"{'#' * level} {text}")
            case Picture(name, alt, draw):
                picture = path.with_name(f"{path.stem}-{name}.png")
                save_figure(draw(), picture)
                lines.append(f"![{alt}]({picture.name})")
            case Table():
                lines.append(to_markdown(part))
            case str():
                lines.append(part)
    return "\n\n".join(lines) + "\n"
