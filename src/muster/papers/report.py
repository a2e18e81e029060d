"""A reproduction in words and tables: what was run and how it differs, our numbers beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import OutputError
from muster.data.lossy import lossy
from muster.papers.entries import Value
from muster.papers.measures import ACCURACIES
from muster.papers.outcome import Compared, Reproduced
from muster.papers.planning import Plan
from muster.papers.published import Number, Numeric, Printed, PublishedRange, paper
from muster.papers.settings import decisions_told, differences_told, options_told
from muster.papers.verdicts import LEVEL, NOTHING, Ours
from muster.report.html import listed, marked
from muster.report.tables import Cell, Table, markdown, text_column

OFF = "≠"


@dataclass(frozen=True)
class ReproductionPage:
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

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        heading, remarks = (listed(lines) if lines else "" for lines in (self.heading, self.remarks))
        tables = "".join(table._repr_html_() for table in self.as_tables())
        return f"<div><p><strong>{marked(self.title)}</strong></p>{heading}{tables}{remarks}</div>"

    def markdown(self) -> str:
        parts = [f"## {self.title}", "\n".join(f"- {line}" for line in self.heading)]
        for caption, header, rows in self.tables:
            parts += [f"### {caption}", markdown(header, rows)]
        parts.append("\n".join(f"- {line}" for line in self.remarks))
        return "\n\n".join(part for part in parts if part) + "\n"


def page(outcome: Reproduced) -> ReproductionPage:
    """Everything about one entry."""
    plan = outcome.plan
    tables = (
        [_numbers(outcome, cell) for cell in plan.cells] if len(plan.entry.values) == 1 else [_values(outcome)]
    )
    if outcome.claims:
        tables.append(_claims(outcome))
    return ReproductionPage(
        f"{plan.entry.id}: {plan.entry.published.caption}", heading(plan), tables, _remarks(outcome)
    )


def write_pages(pages: Sequence[ReproductionPage], path: Path) -> None:
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
    seeds = f"{plan.seeds} seeds (0 to {plan.seeds - 1})" if plan.seeds > 1 else "1 seed (0)"
    lines = [f"{of.name} ({of.authors}); scale {plan.scale}" + (f", {seeds}" if plan.runs else "")]
    published = plan.entry.published
    if published.says:
        lines.append(f"the paper says: {published.says}")
    if published.remark:
        lines.append(f"our remark: {published.remark}")
    if published.source is not None:
        where = "its public code" if published.source.kind == "code" else "the paper's text"
        lines.append(f"published numbers: from {where} ({published.source.note})")
    lines += differences_told([(run, run.differences) for run in plan.runs])
    described = plan.described()
    lines += decisions_told([(one, one.settings) for one in described])
    lines += options_told([(one, one.sections) for one in described], [one.settings for one in described])
    lines += [f"note: {note}" for note in plan.entry.notes]
    if random := dict.fromkeys(one.cell for one in described if frozen_at_random(one.sections.get("model", {}))):
        where = "" if len(random) == len(plan.cells) else f" ({', '.join(random)})"
        lines.append(f"note: The model's frozen part is random, not pre-trained; the layer on it learns{where}.")
    used = dict.fromkeys(str(one.sections["data"]["source"]) for one in described) if plan.runs else {}
    lines += [
        f"note: The pictures of {source} are JPEG files here, which lose a little of the original's."
        for source in used
        if lossy(source)
    ]
    left_out = [
        f"{what} {', '.join(rest)}"
        for what, rest in (
            ("cells", [cell for cell in plan.entry.cells if cell not in (*plan.cells, *plan.left_out)]),
            ("rows", [row for row in plan.entry.rows if row not in plan.rows]),
        )
        if rest
    ]
    lines += [f"not asked for here: {what}" for what in left_out]
    lines += [f"left out: {cell}: {why}" for cell, why in plan.left_out.items()]
    return lines + [
        f"the same runs at this scale: {', '.join(names)}" for names in _merged(plan.same_runs(), plan)
    ]


def frozen_at_random(model: Mapping[str, Any]) -> bool:
    """Whether a network is built that has frozen parts and starts from no files."""
    return "freeze" in model and not {"weights", "image_weights", "folder", "text_folder"} & model.keys()


def _merged(groups: Sequence[tuple[str, ...]], plan: Plan) -> list[tuple[str, ...]]:
    """Whole cells where all of their rows are the same runs, instead of row by row."""
    of_cells = dict.fromkeys(tuple(name.partition(": ")[0] for name in names) for names in groups)
    whole = [
        cells
        for cells in of_cells
        if len(set(cells)) == len(cells)
        and all(tuple(f"{cell}: {row}" for cell in cells) in groups for row in plan.rows)
    ]
    rest = [names for names in groups if tuple(name.partition(": ")[0] for name in names) not in whole]
    return [*(tuple(f"cell {cell}" for cell in cells) for cells in whole), *rest]


def _numbers(outcome: Reproduced, cell: str) -> tuple[str, list[str], list[list[str]]]:
    """One number per run: the paper's, ours, the other accuracies, at equal work."""
    numbers = [number for number in outcome.numbers if number.cell == cell]
    value, published = outcome.plan.entry.values[0], outcome.plan.entry.published
    beside = [metric for metric in ACCURACIES if any(metric in number.beside for number in numbers)]
    at_work, ranked = _at_equal_work(numbers), len(outcome.plan.rows) > 1
    header = [
        "case",
        f"{published.whose}{f', {published.unit}' if published.unit else ''}",
        f"ours: {_title(value)}",
        "difference",
    ]
    header += [f"place: {published.whose}, ours"] if ranked else []
    header += [f"ours: {ACCURACIES[metric]}" for metric in beside]
    header += [f"at equal work: {_title(Value(metric))}" for metric in at_work]
    header += ["client trainings"]
    rows = []
    for number in numbers:
        line = [number.row, printed(number.printed, value), shown(number.ours, value), _difference(number)]
        line += [_places(number, numbers)] if ranked else []
        line += [shown(number.beside.get(metric, NOTHING), value) for metric in beside]
        line += [shown(number.equal_work.get(metric, NOTHING), value) for metric in at_work]
        rows.append([*line, _trainings(number)])
    return _cell_name(outcome.plan, cell), header, rows


def _cell_name(plan: Plan, cell: str) -> str:
    """The cell as a table names it: other data than the paper's must not look like the paper's."""
    return f"{cell} (stand-in)" if any(run.stand_in for run in plan.runs if run.cell == cell) else cell


def _at_equal_work(numbers: Sequence[Compared]) -> list[str]:
    """The metrics that some row has at equal work."""
    return list(
        dict.fromkeys(name for number in numbers for name, ours in number.equal_work.items() if ours.known)
    )


def _values(outcome: Reproduced) -> tuple[str, list[str], list[list[str]]]:
    """Several numbers per run: each of the paper's, then ours and the places; then what the run cost."""
    values, whose = outcome.plan.entry.values, outcome.plan.entry.published.whose
    has = {value.name: any(n.printed is not None for n in _of(outcome, value)) for value in values}
    header, ranked = ["case"], len(outcome.plan.rows) > 1
    for value in values:
        named = [f"{value.name}: {whose}", "ours", *([f"place: {whose}, ours"] if ranked else [])]
        header += named if has[value.name] else [f"ours: {value.name}"]
    beside = list(dict.fromkeys(metric for number in outcome.numbers for metric in number.beside))
    at_work = _at_equal_work(outcome.numbers)
    costs = any(number.trainings.known for number in outcome.numbers)
    header += [f"ours, last: {ACCURACIES[metric]}" for metric in beside]
    header += [f"at equal work: {_title(Value(metric))}" for metric in at_work]
    header += ["client trainings"] if costs else []
    rows = []
    for cell in outcome.plan.cells:
        of_cell = [n for n in outcome.numbers if n.cell == cell]
        for row in outcome.plan.rows:
            line = [f"{_cell_name(outcome.plan, cell)}: {row}"]
            numbers = [n for n in of_cell if n.row == row]
            for number in numbers:
                ours = shown(number.ours, number.value) + (f" {OFF}" if number.off else "")
                rivals = [n for n in of_cell if n.value is number.value]
                theirs = [printed(number.printed, number.value)] if has[number.value.name] else []
                line += [*theirs, ours, *([_places(number, rivals)] if theirs and ranked else [])]
            line += [
                shown(_first(number.beside.get(metric) for number in numbers), Value(metric)) for metric in beside
            ]
            line += [
                shown(_first(number.equal_work.get(metric) for number in numbers), Value(metric))
                for metric in at_work
            ]
            rows.append(line + ([_trainings(numbers[0])] if costs else []))
    return "Numbers", header, rows


def _of(outcome: Reproduced, value: Value) -> Iterable[Compared]:
    return (number for number in outcome.numbers if number.value is value)


def _first(found: Iterable[Ours | None]) -> Ours:
    return next((ours for ours in found if ours is not None), NOTHING)


def _trainings(number: Compared) -> str:
    return f"{number.trainings.mean:,.0f}" if number.trainings.known else "–"


def _claims(outcome: Reproduced) -> tuple[str, list[str], list[list[str]]]:
    rows = [[checked.claim.text, checked.where, str(checked)] for checked in outcome.claims]
    return "What the paper says, in our runs", ["claim", "where", "here"], rows


def _remarks(outcome: Reproduced) -> list[str]:
    plan, lines = outcome.plan, []
    asked = [n for n in outcome.numbers if not n.unfit and isinstance(n.printed, Numeric) and n.ours.seeds > 1]
    if asked:
        lines.append(
            f"{OFF}: {sum(number.off for number in asked)} of {len(asked)} numbers are shown to differ from the "
            f"published ones by more than {_tolerances(plan, asked)}their spread and chance (settings "
            "differ as the heading says)."
        )
    often = _how_often(plan)
    if plan.size.last > 1 and plan.runs and any(value.pick == "final" for value in plan.entry.values):
        evaluations = ", ".join(["evaluations", *often])
        lines.append(f"Numbers of the end are means of the last {plan.size.last} {evaluations}.")
    elif often:
        lines.append(f"Evaluated {often[0]}.")
    if (seeds := max((number.ours.seeds for number in outcome.numbers), default=0)) > 1:
        lines.append(
            f"± in the numbers is the standard deviation over {seeds} seeds. A seed decides the division among "
            f"clients{', the first model and every draw; all rows of a cell share it' if plan.runs else ''}."
        )
    told = len(plan.entry.values) == 1 or any(number.printed is not None for number in outcome.numbers)
    if told and len(plan.rows) > 1:
        lines.append("Places are ranks of means among the rows that are shown, chance included.")
    if _at_equal_work(outcome.numbers):
        lines.append("At equal work: after as many client trainings as the cheapest row of the cell used in all.")
    if any(checked.why and " ± " in checked.why for checked in outcome.claims):
        lines.append(
            "Claims: differences are taken seed by seed, with their 95 % intervals; the chance that any of this "
            f"entry's verdicts is wrong where methods are equal is {100 * LEVEL:g} % at most (Holm's correction)."
        )
    if unfit := list(dict.fromkeys(number.unfit for number in outcome.numbers if number.unfit)):
        lines.append(
            f"Not judged, because of: {'; '.join(unfit)}. Such numbers say nothing about the paper's: none is "
            "marked, and no claim about them is judged."
        )
    elif plan.runs and plan.seeds == 1:
        lines.append("One seed says nothing about chance: no number is marked and no claim is judged.")
    if outcome.missing:
        reasons = dict.fromkeys(why for *_, why in outcome.missing)
        count = len(outcome.missing)
        lines.append(f"{count} {'run has' if count == 1 else 'runs have'} no result: {'; '.join(reasons)}")
    made = f" Its runs were made by Muster {' and '.join(outcome.made_by)}." if outcome.made_by else ""
    return [*lines, f"To run it again: `{plan.command}`.{made}"]


def _how_often(plan: Plan) -> list[str]:
    """After which rounds models were evaluated, where not after all."""
    every = sorted({run.experiment.evaluation.get("every", 1) for run in plan.runs} - {1})
    return [f"after every {' or '.join(map(_ordinal, every))} round"] if every else []


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth", 5: "fifth"}.get(number, f"{number}th")


def _tolerances(plan: Plan, asked: Sequence[Compared]) -> str:
    """By how much numbers may differ beyond chance: once if all values share it, otherwise by name."""
    values = list(dict.fromkeys(number.value for number in asked))
    allowed = [f"{plan.entry.tolerance_of(value):.3g}" for value in values]
    if set(allowed) == {"0"}:
        return ""
    if len(set(allowed)) == 1:
        return f"{allowed[0]} {'point' if allowed[0] == '1' else 'points'}, "
    return "".join(f"{tolerance} ({value.name}), " for value, tolerance in zip(values, allowed, strict=True))


def printed(cell: Printed | None, value: Value) -> str:
    """A published number as the paper gives it."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    digits = 2 if value.factor > 1 else value.digits
    if isinstance(cell, PublishedRange):
        return f"{cell.low:g} to {cell.high:g}"
    return f"{cell.value:.{digits}f}" + (f" ± {cell.std:.{digits}f}" if cell.std else "")


def shown(ours: Ours, value: Value) -> str:
    if not ours.known:
        return "–"
    spread = f" ± {ours.std:,.{value.digits}f}" if ours.seeds > 1 else ""
    return f"{ours.mean:,.{value.digits}f}{spread}"


def _difference(number: Compared) -> str:
    if math.isnan(number.difference):
        return "–"
    return f"{number.difference:+.{number.value.digits}f}{f' {OFF}' if number.off else ''}"


def _places(number: Compared, numbers: Sequence[Compared]) -> str:
    """The place among the cell's rows with the same first part ("FedAvg / …"), in the paper and here."""
    group = [other for other in numbers if other.row.partition(" / ")[0] == number.row.partition(" / ")[0]]
    rivals = group if len(group) > 1 else list(numbers)
    sign = -1 if number.value.lower else 1
    theirs = [sign * n.printed.value if isinstance(n.printed, Number) else math.nan for n in rivals]
    ours = [sign * n.ours.mean for n in rivals]
    here = next(i for i, other in enumerate(rivals) if other is number)
    # Nobody has a place of ours before all rows have run; the paper's places are among what it prints.
    ran = all(n.ours.known for n in rivals)
    return f"{_place(theirs, here)}, {_place(ours, here) if ran else '–'}"


def _place(values: Sequence[float], which: int) -> str:
    if math.isnan(values[which]):
        return "–"
    return str(1 + sum(value > values[which] for value in values))


def _title(value: Value) -> str:
    return value.name or ACCURACIES.get(value.metric, value.metric.replace("_", " "))
