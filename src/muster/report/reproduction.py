"""A reproduction in words and tables: what was run and how it differs, our numbers beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.errors import OutputError
from muster.experiment.papers.entries import Value
from muster.experiment.papers.measures import ACCURACIES
from muster.experiment.papers.outcome import Compared, Ours, Outcome
from muster.experiment.papers.planning import Plan
from muster.experiment.papers.published import Number, Printed, paper
from muster.experiment.papers.settings import decisions_told, differences_told, options_told
from muster.report.tables import Cell, Table, markdown, text_column

OFF = "≠"


@dataclass(frozen=True)
class Page:
    """What is shown of a reproduction, for terminals and Markdown alike."""

    title: str
    #: Set-up, and everything in which it is not the paper's.
    heading: list[str]
    tables: list[tuple[str, list[str], list[list[str]]]]
    remarks: list[str]

    def as_tables(self) -> list[Table]:
        """For terminals, which break wide tables."""
        return [
            Table(
                caption,
                tuple(text_column(name) for name in header),
                tuple(tuple(Cell(text) for text in row) for row in rows),
            )
            for caption, header, rows in self.tables
        ]

    def markdown(self) -> str:
        parts = [f"## {self.title}", "\n".join(f"- {line}" for line in self.heading)]
        for caption, header, rows in self.tables:
            parts += [f"### {caption}", markdown(header, rows)]
        parts.append("\n".join(f"- {line}" for line in self.remarks))
        return "\n\n".join(part for part in parts if part) + "\n"


def page(outcome: Outcome) -> Page:
    """Everything about one entry."""
    plan = outcome.plan
    tables = (
        [_numbers(outcome, cell) for cell in plan.cells] if len(plan.entry.values) == 1 else [_values(outcome)]
    )
    if outcome.claims:
        tables.append(_claims(outcome))
    return Page(f"{plan.entry.id}: {plan.entry.published.caption}", heading(plan), tables, _remarks(outcome))


def write_pages(pages: Sequence[Page], path: Path) -> None:
    """Write comparisons as one Markdown file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(one.markdown() for one in pages), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --out"
        ) from error


def heading(plan: Plan) -> list[str]:
    """What is run and what differs from the paper, line by line."""
    of = paper(plan.entry.paper)
    seeds = f"{plan.seeds} seed" + ("s" if plan.seeds > 1 else "")
    lines = [f"{of.name} ({of.authors}); scale {plan.scale}" + (f", {seeds}" if plan.runs else "")]
    if plan.entry.published.says:
        lines.append(f"the paper says: {plan.entry.published.says}")
    lines += differences_told([(run, run.differences) for run in plan.runs])
    lines += decisions_told([(run, run.settings) for run in plan.runs])
    lines += options_told([(run, run.experiment.as_run().to_dict()) for run in plan.runs])
    lines += [f"note: {note}" for note in plan.entry.notes]
    left_out = [
        f"{what} {', '.join(rest)}"
        for what, rest in (
            ("cells", [cell for cell in plan.entry.cells if cell not in plan.cells]),
            ("rows", [row for row in plan.entry.rows if row not in plan.rows]),
        )
        if rest
    ]
    return lines + [f"not asked for here: {what}" for what in left_out]


def _numbers(outcome: Outcome, cell: str) -> tuple[str, list[str], list[list[str]]]:
    """One number a run: the paper's, ours, the other accuracies, at equal work."""
    numbers = [number for number in outcome.numbers if number.cell == cell]
    value, unit = outcome.plan.entry.values[0], outcome.plan.entry.published.unit
    beside = [metric for metric in ACCURACIES if any(metric in number.beside for number in numbers)]
    at_work = [metric for metric, ours in numbers[0].equal_work.items() if ours.known] if numbers else []
    header = [
        "case",
        f"paper{f', {unit}' if unit else ''}",
        f"ours: {_title(value)}",
        "difference",
        "place: paper, ours",
    ]
    header += [f"ours: {ACCURACIES[metric]}" for metric in beside]
    header += [f"at equal work: {_title(Value(metric))}" for metric in at_work]
    header += ["client trainings"]
    rows = []
    for number in numbers:
        line = [number.row, printed(number.printed, value), shown(number.ours, value), _difference(number)]
        line += [_places(number, numbers)]
        line += [shown(number.beside[metric], value) if metric in number.beside else "–" for metric in beside]
        line += [shown(number.equal_work[metric], value) for metric in at_work]
        rows.append([*line, f"{number.trainings.mean:,.0f}" if number.trainings.known else "–"])
    return cell, header, rows


def _values(outcome: Outcome) -> tuple[str, list[str], list[list[str]]]:
    """Several numbers a run: each of the paper's, then ours."""
    values = outcome.plan.entry.values
    has = {value.name: any(n.printed is not None for n in _of(outcome, value)) for value in values}
    header = ["case"]
    for value in values:
        header += [f"{value.name}: paper", "ours"] if has[value.name] else [f"ours: {value.name}"]
    firsts = [number for number in outcome.numbers if number.value is values[0]]
    beside = [metric for metric in ACCURACIES if firsts and all(metric in number.beside for number in firsts)]
    header += [f"ours, last: {ACCURACIES[metric]}" for metric in beside]
    rows = []
    for cell in outcome.plan.cells:
        for row in outcome.plan.rows:
            line = [f"{cell}: {row}"]
            numbers = [n for n in outcome.numbers if n.cell == cell and n.row == row]
            for number in numbers:
                line += [printed(number.printed, number.value)] if has[number.value.name] else []
                line += [shown(number.ours, number.value) + (f" {OFF}" if number.off else "")]
            line += [shown(numbers[0].beside[metric], Value(metric)) for metric in beside]
            rows.append(line)
    return "Numbers", header, rows


def _of(outcome: Outcome, value: Value) -> Iterable[Compared]:
    return (number for number in outcome.numbers if number.value is value)


def _claims(outcome: Outcome) -> tuple[str, list[str], list[list[str]]]:
    rows = [[checked.claim.text, checked.where, checked.verdict] for checked in outcome.claims]
    return "What the paper says, in our runs", ["claim", "where", "here"], rows


def _remarks(outcome: Outcome) -> list[str]:
    size, lines = outcome.plan.size, []
    compared = [n for n in outcome.numbers if isinstance(n.printed, Number) and n.ours.known]
    if compared and outcome.plan.can_judge:
        off = sum(number.off for number in compared)
        lines.append(
            f"{OFF}: {off} of {len(compared)} numbers differ from the paper's by more than "
            f"{outcome.plan.entry.tolerance:g} points and both spreads."
        )
    if size.last > 1 and outcome.plan.runs:
        lines.append(
            f"Ours is the mean of the last {size.last} evaluations; ± is the standard deviation over seeds."
        )
    if any(ours.known for number in outcome.numbers for ours in number.equal_work.values()):
        lines.append("At equal work: after as many client trainings as the cheapest row of the cell used in all.")
    if outcome.claims and outcome.plan.runs and outcome.plan.can_judge:
        lines.append(
            "Claims: a difference within its own standard deviation, taken seed by seed, is too close to say."
            if outcome.plan.seeds > 1
            else "Claims: with one seed nothing is known about chance."
        )
    if not outcome.plan.can_judge:
        lines.append(
            f"Scale {outcome.plan.scale} only shows that the entry runs: its numbers say nothing about the "
            "methods, so no number is marked and no claim is judged."
        )
    if outcome.missing:
        reasons = dict.fromkeys(why for *_, why in outcome.missing)
        lines.append(f"{len(outcome.missing)} runs have no result: {'; '.join(reasons)}")
    return lines


def printed(cell: Printed | None, value: Value) -> str:
    """A published number as the paper gives it."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    digits = 2 if value.factor > 1 else value.digits
    return f"{cell.value:.{digits}f}" + (f" ± {cell.std:.{digits}f}" if cell.std else "")


def shown(ours: Ours, value: Value) -> str:
    if not ours.known:
        return "–"
    spread = f" ± {ours.std:,.{value.digits}f}" if ours.seeds > 1 else ""
    return f"{ours.mean:,.{value.digits}f}{spread}"


def _difference(number: Compared) -> str:
    if math.isnan(number.difference):
        return "–"
    return f"{number.difference:+.1f}{f' {OFF}' if number.off else ''}"


def _places(number: Compared, numbers: Sequence[Compared]) -> str:
    """The place among the cell's rows with the same first part ("FedAvg / …"), in the paper and here."""
    group = [other for other in numbers if other.row.partition(" / ")[0] == number.row.partition(" / ")[0]]
    rivals = group if len(group) > 1 else list(numbers)
    theirs = [n.printed.value if isinstance(n.printed, Number) else math.nan for n in rivals]
    ours = [n.ours.mean for n in rivals]
    here = next(i for i, other in enumerate(rivals) if other is number)
    return f"{_place(theirs, here)}, {_place(ours, here)}"


def _place(values: Sequence[float], which: int) -> str:
    if math.isnan(values[which]):
        return "–"
    return str(1 + sum(value > values[which] for value in values))


def _title(value: Value) -> str:
    return value.name or ACCURACIES.get(value.metric, value.metric.replace("_", " "))
