"""The league's page: the short answer, ranks, gains, costs; problem by problem on a page beside it."""

from __future__ import annotations

import html as escaping
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from muster.core.errors import ConfigError, OutputError
from muster.league.conclusions import conclusions
from muster.league.evidence import Evidence
from muster.league.gains import gains_of
from muster.league.outcome import LeagueTable, Outcome
from muster.league.picture import draw_gains
from muster.league.planning import LeaguePlan, seeds_in_words
from muster.league.tables import all_methods, beside, by_gain, gain_table, of_problem, ranks, tuned, when
from muster.report import html
from muster.report.measured import has_place, with_measured
from muster.report.plots import draw_ranks, save_figure
from muster.report.render import to_html, to_markdown
from muster.report.tables import Table


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Drawing:
    name: str
    alt: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Bullets:
    texts: tuple[str, ...]


Part = Heading | Drawing | Table | Bullets | str
Profiles = Mapping[str, Mapping[str, float]]


def parts(outcome: Outcome, evidence: Evidence, command: str) -> list[Part]:
    """What the page says, in order; texts are paragraphs."""
    profiles = {tried.name: tried.profile for tried in evidence.problems}
    found: list[Part] = [*_answer(outcome, profiles)]
    for table in outcome.tables:
        found += _of_table(table)
    return [*found, *_tuning(outcome), *_absent(outcome), *_repeating(outcome, evidence, command)]


def details(outcome: Outcome) -> list[Part]:
    """Every problem, for those who want to look something up."""
    found: list[Part] = [
        "Accuracy at equal client trainings, mean over seeds with its 95 % interval, and the difference to "
        "the baseline over pairs of the same seed with its own. Significant: Wilcoxon's signed-rank test, "
        "corrected within the problem."
    ]
    for table in outcome.tables:
        found += [Heading(table.table.name), *(of_problem(table, judged) for judged in table.comparison.judged)]
    return found


def _answer(outcome: Outcome, profiles: Profiles) -> Iterator[Part]:
    yield Heading("The short answer")
    for table in outcome.tables:
        gains = gains_of(table.comparison)
        yield Heading(f"{table.table.name}: which method?", 3)
        yield _compared(table)
        yield Bullets(tuple(conclusions(table, gains)))
        yield when(table, gains, profiles)


def _compared(table: LeagueTable) -> str:
    own = table.table
    rest = "" if own.compares == "selection" else f", all with `{own.selection}` selection"
    return f"{len(all_methods(table))} methods, compared with `{own.baseline}`{rest}."


def _of_table(table: LeagueTable) -> Iterator[Part]:
    name, comparison, gains = table.table.name, table.comparison, gains_of(table.comparison)
    slug = name.lower()
    yield Heading(name)
    if (found := ranks(table)) is not None and comparison.ranking is not None:
        title = f"accuracy over {comparison.ranking.problems} problems, equal client trainings"
        ends = zip(comparison.ranking.methods, comparison.ranking.mean, strict=True)
        alt = "Mean ranks: " + ", ".join(f"{method} {rank:.2f}" for method, rank in ends)
        yield Drawing(f"{slug}-ranks", alt, partial(draw_ranks, comparison.ranking, title))
        yield found
    yield gain_table(table, gains)
    if methods := by_gain(table, gains):
        title = f"points of accuracy over {table.table.baseline}, equal client trainings"
        alt = f"Gains over {table.table.baseline}, methods × problems; bold: the interval does not contain zero"
        yield Drawing(f"{slug}-gains", alt, partial(draw_gains, gains, methods, title))
        yield "Bold: the 95 % interval over seeds does not contain zero. Rows are ordered by mean gain."
    yield beside(table)


def _tuning(outcome: Outcome) -> Iterator[Part]:
    plan = outcome.plan
    yield Heading("Tuning")
    if not plan.scale.tuning:
        yield "Nothing was tuned at this scale: methods have the options of the league's file, otherwise defaults."
        return
    tuned_on = plan.league.tuning_seeds
    seeds = f"seed{'s' * (len(tuned_on) > 1)} {', '.join(map(str, tuned_on))}"
    yield (
        f"Where the league's file has a grid for a method, its options were chosen for each problem on the "
        f"{seeds}, which no other run has, by accuracy at equal client trainings. All other options are those of "
        "the file, or else defaults."
    )
    if outcome.chosen:
        yield tuned(outcome)


def _absent(outcome: Outcome) -> Iterator[Part]:
    plan = outcome.plan
    left = [
        f"{method} ({table.name}): {why}"
        for table in plan.league.tables
        for method, why in table.leave_out.items()
    ]
    reasons = {**plan.absent, **outcome.short, **outcome.failed}
    missing = [f"{name}: {why.splitlines()[0]}" for name, why in reasons.items()]
    if left or missing:
        yield Heading("What is missing")
        yield Bullets((*missing, *left))


def _repeating(outcome: Outcome, evidence: Evidence, command: str) -> Iterator[Part]:
    plan = outcome.plan
    yield Heading("How it was made")
    seeds = seeds_in_words(plan.seeds.values())
    yield (
        f"{len(plan.problems)} problems, {seeds} each, scale {plan.scale_name!r}, Muster {evidence.version}. "
        f"Scores are means of the last {plan.league.last} evaluations, taken when every method has spent as many "
        "client trainings as the cheapest one in all. Repeat it with:"
    )
    yield f"`{command}`"


# --- files -------------------------------------------------------------------------------------------------------


def write_page(outcome: Outcome, evidence: Evidence, path: Path, command: str) -> list[Path]:
    """Write .html (one file), or .md with its pictures and every problem beside it; the pages.

    A .md that is there already and has a marked place keeps the words around it. Pictures go into `images` beside
    the page, where there is such a folder.
    """
    if path.suffix not in (".html", ".md"):
        raise ConfigError(f"unknown format of {path}", expected="a name that ends in .html or .md")
    title = _title(outcome.plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = parts(outcome, evidence, command)
        if path.suffix == ".html":
            path.write_text(_html(title, found, details(outcome)), encoding="utf-8")
            return [path]
        beside = path.with_name(f"{path.stem}-problems.md")
        more = f"[Every method in every problem]({beside.name})."
        text = _markdown([*found, more], path)
        path.write_text(
            with_measured(path, text) if has_place(path) else f"# {title}\n\n{text}\n", encoding="utf-8"
        )
        beside.write_text(f"# {title}, problem by problem\n\n{_markdown(details(outcome), beside)}\n", "utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --out"
        ) from error
    return [path, beside]


def _title(plan: LeaguePlan) -> str:
    """With the name of the table, where there is only one."""
    tables = [table.name for table in plan.league.tables]
    name = plan.league.name
    whole = f"The {name}" if name == "league" else f"The league '{name}'"
    return f"{whole}: {', '.join([*(tables if len(tables) == 1 else []), plan.scale_name])}"


def _html(title: str, found: Sequence[Part], more: Sequence[Part]) -> str:
    return html.page(
        title,
        f"<h1>{html.marked(title)}</h1>{_html_of(found)}"
        f"<details><summary>Every method in every problem</summary>{_html_of(more)}</details>",
    )


def _html_of(found: Sequence[Part]) -> str:
    body = []
    for part in found:
        match part:
            case Heading(text, level):
                body.append(f"<h{level}>{escaping.escape(text)}</h{level}>")
            case Drawing(_, alt, draw):
                body.append(html.figure(draw, alt))
            case Table():
                body.append(f"<h3>{escaping.escape(part.title)}</h3>\n{to_html(part)}")
            case Bullets(texts):
                body.append(f"<ul>{''.join(f'<li>{html.marked(text)}</li>' for text in texts)}</ul>")
            case str():
                body.append(f"<p>{html.marked(part)}</p>")
    return "\n".join(body)


def _markdown(found: Sequence[Part], path: Path) -> str:
    lines = []
    for part in found:
        match part:
            case Heading(text, level):
                lines.append(f"{'#' * level} {text}")
            case Drawing(name, alt, draw):
                folder = path.with_name("images") if path.with_name("images").is_dir() else path.parent
                picture = folder / f"{path.stem}-{name}.png"
                save_figure(draw(), picture)
                lines.append(f"![{alt}]({picture.relative_to(path.parent).as_posix()})")
            case Table():
                lines.append(to_markdown(part))
            case Bullets(texts):
                lines.append("\n".join(f"- {text}" for text in texts))
            case str():
                lines.append(part)
    return "\n\n".join(lines)
