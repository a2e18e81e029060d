"""A whole comparison: cases from results, the tables, and what a reader has to be warned of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from muster.core.errors import ConfigError, nearest
from muster.report.compare.grouping import grouped
from muster.report.compare.measures import (
    Budget,
    better,
    checked_unit,
    federated,
    known_metrics,
    spends,
    total,
    value,
)
from muster.report.compare.pairs import significance
from muster.report.compare.remarks import about_cases, about_results
from muster.report.compare.sections import budgets, fairness, overheads, scores, targets, times, weights
from muster.report.tables import Table
from muster.results.cases import Case
from muster.server.result import Result

#: The tables by name, in their order.
TABLES = ("scores", "budgets", "targets", "significance", "participation", "weights", "time", "overhead")
CORRECTIONS = ("holm", "none")


@dataclass(frozen=True)
class Options:
    """How to compare; the defaults work."""

    metric: str = "accuracy"
    #: Other metrics that the scores show beside it.
    also: tuple[str, ...] = ()
    #: Mean of so many last evaluations: one round depends much on whose turn it was.
    last: int = 1
    #: Scores and tests after an amount of work: "round=20"; without a number after the smallest total of all runs.
    at: str = ""
    #: Values of the metric to be reached; none: the baseline's mean at the end.
    targets: tuple[float, ...] = ()
    #: So many evaluations in a row have to reach a target.
    sustain: int = 1
    #: Name of the case that others are tested against; empty: random selection, else the first case.
    baseline: str = ""
    #: Config keys (`selection.method`) that make a case; none: everything but the seed.
    by: tuple[str, ...] = ()
    #: For several comparisons with one baseline: holm or none.
    correction: str = "holm"
    #: Take runs that have not done all of their rounds, too.
    unfinished: bool = False
    #: Best first, instead of the order of the results.
    sort: bool = False
    #: Names of the tables to make.
    tables: tuple[str, ...] = TABLES

    def check(self) -> None:
        for what, number in (("last", self.last), ("sustain", self.sustain)):
            if number < 1:
                raise ConfigError(f"bad value for '{what}': {number}", expected="at least 1")
        if self.correction not in CORRECTIONS:
            raise ConfigError(
                f"unknown correction '{self.correction}'", expected=nearest(self.correction, CORRECTIONS)
            )
        for name in self.tables:
            if name not in TABLES:
                raise ConfigError(f"unknown table '{name}'", expected=nearest(name, TABLES))


@dataclass(frozen=True)
class Comparison:
    """Cases side by side."""

    cases: tuple[Case, ...]
    baseline: Case
    options: Options
    #: By name; several targets are `targets`, `targets-2`, …
    tables: Mapping[str, Table]
    #: What does not fit together, was left out, or cannot be concluded.
    remarks: tuple[str, ...] = field(default=())


def compare(results: Sequence[Result], options: Options | None = None) -> Comparison:
    """Compare runs: group them by case, seeds within, and make the tables; `render` makes text of them."""
    options = options or Options()
    options.check()
    taken, left_out = _taken(results, options.unfinished)
    if not taken:
        raise ConfigError(
            f"nothing to compare: {len(results)} runs, none {'begun' if options.unfinished else 'finished'}",
            fix="finish them, or compare what there is with --unfinished" if results else "run something first",
        )
    for metric in (options.metric, *options.also):
        _check_metric(metric, taken)
    found = grouped(taken, options.by)
    if options.sort:
        found.sort(key=lambda case: -better(options.metric).value * _score(case, options, None))
    baseline = _baseline(found, options.baseline)
    return Comparison(
        tuple(found),
        baseline,
        options,
        _tables(found, baseline, options),
        (*about_results(taken, left_out, found), *about_cases(found, by=options.by)),
    )


def _taken(results: Sequence[Result], unfinished: bool) -> tuple[list[Result], list[Result]]:
    """The runs that are compared, and those that are not."""
    usable = [bool(run.records) and (run.complete or unfinished) for run in results]
    taken, left_out = (
        [run for run, use in zip(results, usable, strict=True) if use is wanted] for wanted in (True, False)
    )
    return taken, left_out


def _tables(found: Sequence[Case], baseline: Case, options: Options) -> dict[str, Table]:
    metric, last = options.metric, options.last
    at = _budget(options.at, found)
    tables: dict[str, Table] = {}
    for name in options.tables:
        match name:
            case "scores":
                tables[name] = scores(found, metric, last=last, at=at, also=options.also)
            case "budgets":
                tables[name] = budgets(found, metric, last=last)
            case "targets":
                tables |= _target_tables(found, baseline, options)
            case "significance" if len(found) > 1:
                correct = options.correction == "holm"
                tables[name] = significance(found, baseline, metric, last=last, at=at, correct=correct)
            case "participation":
                tables[name] = fairness(found)
            case "weights":
                tables[name] = weights(found)
            case "time" if any(spends(run, "virtual_seconds") for case in found for run in case.runs):
                tables[name] = times(found)
            case "overhead":
                tables[name] = overheads(found)
    return tables


def _target_tables(found: Sequence[Case], baseline: Case, options: Options) -> dict[str, Table]:
    wanted, why = options.targets, ""
    if not wanted:
        wanted, why = (_score(baseline, options, None),), f" (mean of {baseline.name} at the end)"
    return {
        "targets" if number == 1 else f"targets-{number}": targets(
            found, options.metric, target, sustain=options.sustain, why=why
        )
        for number, target in enumerate(wanted, start=1)
    }


def _score(case: Case, options: Options, at: Budget | None) -> float:
    return fmean(value(run, options.metric, last=options.last, within=at) for run in case.runs)


def _budget(text: str, found: Sequence[Case]) -> Budget | None:
    """`unit=amount`, or `unit` alone for the smallest total of all runs."""
    if not text:
        return None
    unit, equals, amount = (part.strip() for part in text.partition("="))
    checked_unit(unit)
    if not equals:
        spent = [total(run, unit) for case in found for run in case.runs if spends(run, unit)]
        return Budget(unit, min(spent, default=0.0))
    try:
        return Budget(unit, float(amount))
    except ValueError as error:
        raise ConfigError(f"bad amount of work '{text}'", expected="for example round=20 or bytes=5e6") from error


def _baseline(found: Sequence[Case], name: str) -> Case:
    if name:
        matching = [case for case in found if case.name == name]
        if not matching:
            raise ConfigError(f"no case is called '{name}'", expected=nearest(name, [case.name for case in found]))
        return matching[0]
    by_chance = (case for case in found if _selects_at_random(case))
    return next(by_chance, found[0])


def _selects_at_random(case: Case) -> bool:
    selection = case.runs[0].config.get("selection", {})
    return "random" in (case.name, selection.get("method")) and federated(case.runs[0])


def _check_metric(metric: str, runs: Sequence[Result]) -> None:
    measured = {name for run in runs for name in known_metrics(run)}
    if metric not in measured:
        raise ConfigError(f"no run has measured '{metric}'", expected=nearest(metric, measured))
