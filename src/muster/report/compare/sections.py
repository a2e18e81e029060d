"""The tables of a comparison. Each takes cases and gives a `Table`; the numbers come from `measures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from muster.report.compare.measures import (
    UNITS,
    Budget,
    amount_text,
    area,
    better,
    curve,
    disclosures,
    federated,
    known_metrics,
    metric_column,
    overhead,
    participation,
    spends,
    timing,
    to_target,
    total,
    trains_again,
    unit_column,
    value,
    weights_given,
)
from muster.report.tables import (
    AMOUNTS,
    SHARES,
    UNBOUNDED,
    Better,
    Cell,
    Column,
    Table,
    bytes_column,
    from_columns,
    over_seeds,
    text_column,
)
from muster.results.cases import Case
from muster.server.result import Result

#: Beside the metric that is compared: the other accuracies that people take for each other, and the worst off.
_BESIDE = (
    "accuracy",
    "client_accuracy_mean",
    "participant_accuracy",
    "last_iteration_accuracy",
    "client_accuracy_worst",
    "client_accuracy_worst_tenth",
    "worst_group_accuracy",
)

#: Replaced where intervals are shown.
#: Of the largest to the smallest.
_RATIOS = (1.0, math.inf)
SPREAD_NOTE = "Mean ± standard deviation over seeds."


def scores(
    cases: Sequence[Case], metric: str, *, last: int = 1, at: Budget | None = None, also: Sequence[str] = ()
) -> Table:
    """The metric, the metric at equal work, other metrics (the four accuracies, the worst off), and the price."""

    def cells(name: str, within: Budget | None) -> list[Cell]:
        return _cells(cases, value, name, last=last, within=within)

    least = Budget("client_trainings", _smallest_total(cases, "client_trainings"))
    columns = [*_names(cases), (metric_column(metric), cells(metric, at))]
    if at is None and least.amount > 0:
        columns.append((metric_column(metric, f"after {amount_text(least)}"), cells(metric, least)))
    measured = {name for run in _runs(cases) for name in known_metrics(run)}
    if not any(trains_again(run) for run in _runs(cases)):  # then it says what the participants' says
        measured.discard("last_iteration_accuracy")
    beside = dict.fromkeys((*also, *(name for name in _BESIDE if name in measured)))
    columns += [(metric_column(name), cells(name, at)) for name in beside if name != metric]
    sent = _cells(cases, total, "bytes")
    if "virtual_seconds" in shared_units(cases):
        seconds = _cells(cases, total, "virtual_seconds")
        columns.append(
            (replace(unit_column("virtual_seconds", "virtual time", _largest(seconds)), better=None), seconds)
        )
        wasted = [over_seeds(timing(run)["wasted"] for run in case.runs) for case in cases]
        if any(cell.value for cell in wasted if cell.whole):
            columns.append((Column("wasted", "%", 100.0, ".1f"), wasted))
    columns += [
        (Column("trainings", form=",.0f", bounds=AMOUNTS), _cells(cases, total, "client_trainings")),
        (bytes_column("sent", _largest(sent)), sent),
    ]
    return from_columns(f"Scores {_when(last, at)}", columns, _score_notes(columns))


def budgets(cases: Sequence[Case], metric: str, *, last: int = 1) -> Table:
    """The metric when every run has spent as much as the cheapest one in all, and the area under its curve."""
    at_end: list[tuple[Column, Sequence[Cell]]] = []
    areas: list[tuple[Column, Sequence[Cell]]] = []
    for unit in shared_units(cases):
        within = Budget(unit, _smallest_total(cases, unit))
        title = f"after {amount_text(within)}"
        at_end.append((metric_column(metric, title), _cells(cases, value, metric, last=last, within=within)))
        start = max(curve(run, metric, unit)[0].min(initial=math.inf) for run in _runs(cases) if spends(run, unit))
        title = f"area per {UNITS[unit].one}"
        areas.append((metric_column(metric, title), _cells(cases, area, metric, unit, start, within.amount)))
    notes = (
        "Budgets: the smallest total of all runs. A run counts as it was last evaluated within the budget.",
        "Area: mean height of the curve from the first evaluation that all runs have to the budget, on the "
        "metric's scale.",
    )
    title = f"{metric_column(metric).title.capitalize()} at equal work"
    return from_columns(title, [*_names(cases), *at_end, *areas], notes)


def targets(cases: Sequence[Case], metric: str, target: float, *, sustain: int = 1, why: str = "") -> Table:
    """What it took until the metric reached a target."""
    wanted, shown = better(metric), metric_column(metric)

    def spent(run: Result, unit: str) -> float:
        return to_target(*curve(run, metric, unit), target, wanted, sustain)

    columns: list[tuple[Column, Sequence[Cell]]] = []
    for unit in shared_units(cases):
        cells = [
            censored(*zip(*((spent(run, unit), total(run, unit)) for run in case.runs), strict=True))
            if all(spends(run, unit) for run in case.runs)
            else Cell()
            for case in cases
        ]
        columns.append((unit_column(unit, UNITS[unit].many, _largest(cells)), cells))
    sign = "≥" if wanted is Better.HIGHER else "≤"
    goal = f"{shown.title} {sign} {shown.shown(target)}{f' {shown.unit}' if shown.unit else ''}"
    lasting = f", {sustain} evaluations in a row" if sustain > 1 else ""
    notes = ["'>': not all seeds reached it; the mean of all is larger than this."] if _any_above(columns) else []
    return from_columns(f"To reach {goal}{lasting}{why}", [*_names(cases), *columns], notes)


def censored(values: Sequence[float], totals: Sequence[float]) -> Cell:
    """Mean over seeds; where some never reached the target, a lower bound: they would have needed more work."""
    cell = over_seeds(values)
    reached = sum(not math.isnan(value) for value in values)
    if reached == len(values):
        return cell
    bound = fmean(sorted(limit if math.isnan(own) else own for own, limit in zip(values, totals, strict=True)))
    return Cell(bound, None, tuple(values), above=True, note=f"{reached} of {len(values)} reached")


def fairness(cases: Sequence[Case]) -> Table:
    """How evenly, widely and regularly clients took part."""
    facts = [[participation(run) for run in case.runs] for case in cases]
    columns = [
        (column, [over_seeds(run[name] for run in own) for own in facts])
        for name, column in (
            ("gini", Column("Gini", form=".2f", better=Better.LOWER, bounds=SHARES)),
            ("jain", Column("Jain", form=".2f", better=Better.HIGHER, bounds=SHARES)),
            ("coverage", Column("coverage", "%", 100.0, ".1f", Better.HIGHER)),
            ("longest_wait", Column("longest wait", "rounds", form=".1f", better=Better.LOWER, bounds=AMOUNTS)),
            ("wait_95", Column("wait of 95 %", "rounds", form=".1f", better=Better.LOWER, bounds=AMOUNTS)),
        )
    ]
    notes = (
        "Rounds in which each client's update was used: Gini 0 and Jain 1 are perfectly even; coverage: clients "
        "that were used at all; wait: rounds between two uses, of the client that waited longest and of 95 %.",
    )
    return from_columns("Participation", [*_names(cases), *columns], notes)


def times(cases: Sequence[Case]) -> Table:
    """How virtual time was spent: how long it took, how many worked at once, and how much was wasted."""
    facts = [[timing(run) for run in case.runs] for case in cases]

    def cells(name: str) -> list[Cell]:
        return [over_seeds(run[name] for run in own) for own in facts]

    columns = [
        (unit_column("virtual_seconds", "virtual time", _largest(cells("seconds"))), cells("seconds")),
        (unit_column("virtual_seconds", "a round", _largest(cells("round"))), cells("round")),
        (Column("at work", form=",.1f", bounds=AMOUNTS), cells("at_work")),
        (Column("wasted", "%", 100.0, ".1f", Better.LOWER), cells("wasted")),
        (Column("left", "%", 100.0, ".1f"), cells("left")),
        (Column("late", "%", 100.0, ".1f"), cells("late")),
        (Column("too stale", "%", 100.0, ".1f"), cells("stale")),
        (Column("clients' time wasted", "%", 100.0, ".1f", Better.LOWER), cells("wasted_time")),
        (Column("staleness", form=".1f", bounds=AMOUNTS), cells("staleness")),
        (Column("most", form=".0f", bounds=AMOUNTS), cells("most_stale")),
    ]
    notes = (
        "At work: clients that trained at the same time, on average. Wasted: trainings that were begun and "
        "not used, because the client left, was given up on as late, or answered to a model that was too old. "
        "Staleness: aggregations between the start of a training and its use.",
    )
    return from_columns("Time", [*_names(cases), *columns], notes)


def weights(cases: Sequence[Case]) -> Table:
    """How unequal the weights were with which updates were averaged."""
    facts = [[weights_given(run) for run in case.runs] for case in cases]
    columns = [
        (column, [over_seeds(run[name] for run in own) for own in facts])
        for name, column in (
            ("smallest", Column("smallest weight", form=".3f", bounds=SHARES)),
            ("largest", Column("largest weight", form=".3f", bounds=SHARES)),
            ("ratio", Column("largest / smallest, mean", form=".3f", bounds=_RATIOS)),
            ("largest_ratio", Column("largest / smallest, most", form=".3f", bounds=_RATIOS)),
            ("clients", Column("clients of a training", form=",.1f", bounds=AMOUNTS)),
            ("counting", Column("clients that count", form=",.3f", bounds=AMOUNTS)),
        )
    ]
    notes = (
        "Weights of a training add up to 1. Smallest and largest: of all trainings; ratios: within a training. "
        "Clients that count: the exponential of the weights' entropy, all of them when weights are equal.",
    )
    return from_columns("Weights", [*_names(cases), *columns], notes)


def overheads(cases: Sequence[Case]) -> Table:
    """What a method costs besides one model to and from every client that trains, as measured."""
    facts = [[asdict(overhead(run)) for run in case.runs] for case in cases]

    def cells(name: str) -> list[Cell]:
        return [over_seeds(run[name] for run in own) for own in facts]

    down, up = cells("extra_down"), cells("extra_up")
    columns = [
        (Column("asks", "% of rounds", 100.0, ".0f"), cells("rounds_with_questions")),
        (Column("clients asked", form=",.1f", bounds=AMOUNTS), cells("clients_asked")),
        (Column("client trainings", form=",.1f", bounds=AMOUNTS), cells("client_trainings")),
        # Less than none where updates are compressed.
        (replace(bytes_column("extra down", _largest(down)), bounds=UNBOUNDED), down),
        (replace(bytes_column("extra up", _largest(up)), bounds=UNBOUNDED), up),
        (Column("samples trained", form=",.0f", bounds=AMOUNTS), cells("samples_trained")),
        (Column("samples probed", form=",.0f", bounds=AMOUNTS), cells("samples_probed")),
        (Column("server", "ms", 1000.0, ",.1f", bounds=AMOUNTS), cells("server_seconds")),
        (Column("whole round", "ms", 1000.0, ",.0f", bounds=AMOUNTS), cells("seconds")),
        (text_column("disclosed besides the model update"), [Cell(_told(case)) for case in cases]),
    ]
    notes = (
        "Means of a round. Extra: besides one model to and from every client that trains. Times are those of the "
        "machine that ran it; server: selection and aggregation.",
    )
    known = [(column, own) for column, own in columns if column.textual or any(cell.whole for cell in own)]
    return from_columns("Overhead", [*_names(cases), *known], notes)


def _told(case: Case) -> str:
    """What clients disclosed, and how often per round on average."""
    runs = [disclosures(run) for run in case.runs]
    kinds = sorted({kind for run in runs for kind in run})
    if not kinds:
        return "nothing"
    return "; ".join(f"{kind} ({fmean(run.get(kind, 0.0) for run in runs):.3g} a round)" for kind in kinds)


def shared_units(cases: Sequence[Case]) -> list[str]:
    """The units of work that every federated run has spent some of: virtual seconds need a model of devices."""
    runs = [run for run in _runs(cases) if federated(run)] or _runs(cases)
    return [unit for unit in UNITS if all(spends(run, unit) for run in runs)]


def _names(cases: Sequence[Case]) -> list[tuple[Column, Sequence[Cell]]]:
    pooled = any(len(set(case.seeds)) < len(case.runs) for case in cases)
    return [
        (text_column("case"), [Cell(case.name) for case in cases]),
        (Column("runs" if pooled else "seeds", form=".0f"), [Cell(float(len(case.runs))) for case in cases]),
    ]


def _cells(cases: Sequence[Case], measure: Callable[..., float], *given: Any, **options: Any) -> list[Cell]:
    """The mean over seeds of a measure of a run, one cell per case."""
    return [over_seeds(measure(run, *given, **options) for run in case.runs) for case in cases]


def _runs(cases: Sequence[Case]) -> list[Result]:
    return [run for case in cases for run in case.runs]


def _smallest_total(cases: Sequence[Case], unit: str) -> float:
    return min((total(run, unit) for run in _runs(cases) if spends(run, unit)), default=0.0)


def _largest(cells: Sequence[Cell]) -> float:
    return max((cell.value for cell in cells if isinstance(cell.value, float) and cell.value > 0), default=0.0)


def _any_above(columns: Sequence[tuple[Column, Sequence[Cell]]]) -> bool:
    return any(cell.above for _, cells in columns for cell in cells)


def _when(last: int, at: Budget | None) -> str:
    place = f"after {amount_text(at)}" if at else "at the end"
    return f"{place}, mean of the last {last} evaluations" if last > 1 else place


def _score_notes(columns: Sequence[tuple[Column, Sequence[Cell]]]) -> list[str]:
    titles = [column.title for column, _ in columns]
    several = any(cell.spread is not None for _, cells in columns for cell in cells)
    notes = [SPREAD_NOTE] if several else []
    if any(title.startswith("after ") for title in titles):
        notes.append("At equal work: after as many client trainings as the cheapest run has in all.")
    if "participants only" in titles:
        notes.append(
            "Accuracy: global test set; clients' own data: mean over every client's test data; participants only: "
            "over those that trained in that round, which favours methods whose last training was on them."
        )
    if "last iteration only" in titles:
        notes.append("Last iteration only: over the clients of the round's last training.")
    return notes
