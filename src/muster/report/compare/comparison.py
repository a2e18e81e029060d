"""A whole comparison: each problem judged on its own, methods ranked over problems, warnings for the reader."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from statistics import fmean
from typing import Literal

from muster.core.errors import ConfigError, nearest
from muster.report.compare.across import across, ranked, reached
from muster.report.compare.grouping import check_keys, grouped
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
from muster.report.compare.ranking import Ranking
from muster.report.compare.remarks import about_cases, about_results
from muster.report.compare.sections import (
    SPREAD_NOTE,
    budgets,
    fairness,
    overheads,
    scores,
    targets,
    times,
    weights,
)
from muster.report.intervals import interval_words
from muster.report.tables import Table
from muster.results.cases import Case
from muster.results.problems import Problem, problems
from muster.server.result import Result

#: The tables of a problem by name, in their order.
PROBLEM_TABLES = ("scores", "budgets", "targets", "significance", "participation", "weights", "time", "overhead")
#: All tables: `ranks` is over the problems, where there are several.
TABLES = (*PROBLEM_TABLES, "ranks")
CORRECTIONS = ("holm", "none")
SPREADS = ("interval", "deviation")


@dataclass(frozen=True)
class Options:
    """How to compare; the defaults work."""

    metric: str = "accuracy"
    #: Other metrics that the scores show beside it.
    also: tuple[str, ...] = ()
    #: Mean of this many last evaluations: a single round depends much on who was selected.
    last: int = 1
    #: Scores and tests after an amount of work: "round=20"; without a number after the smallest total of all runs.
    at: str = ""
    #: Values of the metric to be reached; none: the baseline's mean at the end.
    targets: tuple[float, ...] = ()
    #: A target counts as reached when this many evaluations in a row reach it.
    sustain: int = 1
    #: Name of the case that others are tested against; empty: random selection, else the first case.
    baseline: str = ""
    #: Config keys (`selection.method`) that make a case, all runs together; none: everything but the seed makes a
    #: case, and problems are judged each on its own.
    by: tuple[str, ...] = ()
    #: Config keys that make another problem beside those that do anyway, such as `selection.clients_per_round`.
    problem: tuple[str, ...] = ()
    #: Judge all runs together, whatever their problems.
    together: bool = False
    #: For several comparisons with one baseline: holm or none.
    correction: str = "holm"
    #: Include runs that have not finished all of their rounds.
    unfinished: bool = False
    #: Best first, instead of the order of the results.
    sort: bool = False
    #: What stands beside a mean: its confidence interval, or the standard deviation over seeds.
    spread: Literal["interval", "deviation"] = "interval"
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
        if self.spread not in SPREADS:
            raise ConfigError(f"unknown spread '{self.spread}'", expected=nearest(self.spread, SPREADS))
        for name in self.tables:
            if name not in TABLES:
                raise ConfigError(f"unknown table '{name}'", expected=nearest(name, TABLES))


@dataclass(frozen=True)
class Judged:
    """One problem: its cases side by side."""

    problem: Problem
    baseline: Case
    #: By name; several targets are `targets`, `targets-2`, …
    tables: Mapping[str, Table]
    #: What does not fit together or cannot be concluded.
    remarks: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.problem.name

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.problem.cases


@dataclass(frozen=True, repr=False)
class Comparison:
    """Problems, each judged on its own, and methods over all of them."""

    judged: tuple[Judged, ...]
    options: Options
    #: Tables over the problems, by name; none where there is only one problem.
    across: Mapping[str, Table] = field(default_factory=dict)
    #: None where there is one problem only, or fewer than two methods are in all of them.
    ranking: Ranking | None = None
    #: What was left out on the way into problems.
    general: tuple[str, ...] = field(default=())

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases; where there are several problems, their names say which."""
        return tuple(
            replace(case, name=judged.problem.full_name(case)) for judged in self.judged for case in judged.cases
        )

    @property
    def alone(self) -> Judged:
        """The only problem; an error where there are several."""
        (judged,) = self.judged
        return judged

    @property
    def baseline(self) -> Case:
        return self.alone.baseline

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of the only problem."""
        return self.alone.tables

    @property
    def remarks(self) -> list[str]:
        """What a reader has to be warned of: of the whole, and of each problem under its name."""
        own = [
            f"{judged.name}: {remark}" if judged.name else remark
            for judged in self.judged
            for remark in judged.remarks
        ]
        return [*self.general, *own]

    def __repr__(self) -> str:
        return f"Comparison({', '.join(case.name for case in self.cases)}; {self.options.metric})"

    def _repr_html_(self) -> str:
        """What a notebook shows: who is best, and the scores."""
        # Looked up by name: it is made of comparisons.
        shown: str = import_module("muster.report.notebook").comparison_html(self)
        return shown

    def __str__(self) -> str:
        """As Markdown."""
        return str(import_module("muster.report.compare.output").render(self, "markdown"))


def compare(results: Sequence[Result], options: Options | None = None) -> Comparison:
    """Compare runs: group them by problem and case, seeds within, and make tables; `render` makes text of them."""
    options = options or Options()
    options.check()
    if isinstance(results, Result):
        raise ConfigError("compare takes a list of results, and this is a single one", fix="compare([one, other])")
    taken, left_out = _taken(results, options.unfinished)
    if not taken:
        raise ConfigError(
            f"nothing to compare: {len(results)} runs, none {'begun' if options.unfinished else 'finished'}",
            fix="finish them, or compare what there is with --unfinished" if results else "run something first",
        )
    for metric in (options.metric, *options.also):
        _check_metric(metric, taken)
    check_keys(options.problem, taken)
    if options.by or options.together:
        found = [Problem("", tuple(grouped(taken, options.by)))]
    else:
        found = problems(taken, options.problem)
    return judge(found, options, tuple(about_results(taken, left_out, found)))


def judge(found: Sequence[Problem], options: Options | None = None, remarks: Sequence[str] = ()) -> Comparison:
    """Judge problems that are known already."""
    options = options or Options()
    options.check()
    if options.baseline:
        _check_baseline(options.baseline, found)
    judged = tuple(_judged(problem, options) for problem in found)
    if len(judged) == 1:
        if options.tables == ("ranks",):
            raise ConfigError(
                "there are no ranks: all runs work on one problem",
                fix="choose runs on several, or say with --problem which settings make problems",
            )
        return Comparison(judged, options, general=tuple(remarks))
    known = [one.problem for one in judged]
    budgets = [budget_of(options.at, problem.cases) for problem in known]
    scores = reached(known, options.metric, last=options.last, at=budgets)
    ranking = ranked(known, scores, options.metric)
    baselines = {one.baseline.name for one in judged}
    baseline = baselines.pop() if len(baselines) == 1 else ""
    tables = {}
    if "ranks" in options.tables:
        table = across(known, scores, options.metric, ranking, baseline=baseline, at_end=not options.at)
        tables["ranks"] = with_intervals(table) if options.spread == "interval" else table
    return Comparison(judged, options, tables, ranking, tuple(remarks))


def _judged(problem: Problem, options: Options) -> Judged:
    found = list(problem.cases)
    if options.sort:
        at, sign = budget_of(options.at, found), better(options.metric).value

        def place(case: Case) -> tuple[bool, float]:
            score = _score(case, options, at)
            return math.isnan(score), -sign * score  # NaN has no place in an order: it comes last

        found.sort(key=place)
    baseline = _baseline(found, options.baseline)
    problem = replace(problem, cases=tuple(found))
    return Judged(problem, baseline, _tables(found, baseline, options), tuple(about_cases(found, by=options.by)))


def _taken(results: Sequence[Result], unfinished: bool) -> tuple[list[Result], list[Result]]:
    """The runs that are compared, and those that are not."""
    usable = [bool(run.records) and (run.complete or unfinished) for run in results]
    taken, left_out = (
        [run for run, use in zip(results, usable, strict=True) if use is wanted] for wanted in (True, False)
    )
    return taken, left_out


def _tables(found: Sequence[Case], baseline: Case, options: Options) -> dict[str, Table]:
    metric, last = options.metric, options.last
    at = budget_of(options.at, found)
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
    if options.spread == "deviation":
        return tables
    # A test's differences have columns of their own for the interval.
    return {name: table if name == "significance" else with_intervals(table) for name, table in tables.items()}


def with_intervals(table: Table) -> Table:
    """The table with confidence intervals in place of standard deviations, and a note that says so."""
    kind = interval_words(len(cell.values) for row in table.rows for cell in row if cell.interval)
    words = f"Mean and, in brackets, its 95 % interval over seeds ({kind})."
    notes = [words if note == SPREAD_NOTE else note for note in table.notes]
    return replace(table, notes=tuple(notes), intervals=True)


def _target_tables(found: Sequence[Case], baseline: Case, options: Options) -> dict[str, Table]:
    wanted, why = options.targets, ""
    if not wanted:
        end = _score(baseline, options, None)
        # A metric that the baseline of this problem has not measured gives no target.
        wanted, why = () if math.isnan(end) else (end,), f" (mean of {baseline.name} at the end)"
    return {
        "targets" if number == 1 else f"targets-{number}": targets(
            found, options.metric, target, sustain=options.sustain, why=why
        )
        for number, target in enumerate(wanted, start=1)
    }


def _score(case: Case, options: Options, at: Budget | None) -> float:
    return fmean(value(run, options.metric, last=options.last, within=at) for run in case.runs)


def budget_of(text: str, found: Sequence[Case]) -> Budget | None:
    """The work at which cases are compared: `unit=amount`, or `unit` alone for the smallest total of all runs."""
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


def _check_baseline(name: str, found: Sequence[Problem]) -> None:
    known = [case.name for problem in found for case in problem.cases]
    if name not in known:
        raise ConfigError(f"no case is called '{name}'", expected=nearest(name, known))


def _baseline(found: Sequence[Case], name: str) -> Case:
    """The case of that name; without a name, or where the problem lacks it, random selection or the first."""
    named = (case for case in found if case.name == name)
    by_chance = (case for case in found if _selects_at_random(case))
    return next(named, next(by_chance, found[0]))


def _selects_at_random(case: Case) -> bool:
    selection = case.runs[0].config.get("selection", {})
    return "random" in (case.name, selection.get("method")) and federated(case.runs[0])


def _check_metric(metric: str, runs: Sequence[Result]) -> None:
    measured = {name for run in runs for name in known_metrics(run)}
    if metric not in measured:
        raise ConfigError(f"no run has measured '{metric}'", expected=nearest(metric, measured))
