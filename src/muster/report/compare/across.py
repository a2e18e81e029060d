"""The table over problems: what each method reached in each of them, its mean rank and its wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from muster.report.compare.measures import Budget, better, metric_column, total, value
from muster.report.compare.ranking import LEVEL, Ranking, critical_difference, ranking
from muster.report.compare.sections import SPREAD_NOTE
from muster.report.tables import Better, Cell, Column, Table, from_columns, over_seeds, text_column
from muster.results.cases import seed_of
from muster.results.problems import Problem

#: From this many times the least work on, it is said that work was not equal.
MUCH_MORE = 1.05


def methods_of(problems: Sequence[Problem]) -> list[str]:
    """All methods, in the order in which they first occur."""
    return list(dict.fromkeys(case.name for problem in problems for case in problem.cases))


def reached(
    problems: Sequence[Problem], metric: str, *, last: int = 1, at: Sequence[Budget | None] = ()
) -> list[dict[str, Cell]]:
    """What each method reached, problem by problem; `at`: within a budget of each."""
    budgets = at or [None] * len(problems)
    return [
        {
            case.name: over_seeds(value(run, metric, last=last, within=within) for run in case.runs)
            for case in problem.cases
        }
        for problem, within in zip(problems, budgets, strict=True)
    ]


def short_of_seeds(problems: Sequence[Problem]) -> dict[str, str]:
    """Method → where it has fewer seeds than the fullest case of the problem, as "1 of 10 seeds in alpha=0.3"."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        # Distinct ones: a run that was repeated makes no case fuller.
        seeds = {case.name: len({seed_of(run) for run in case.runs}) for case in problem.cases}
        most = max(seeds.values(), default=0)
        for name, count in seeds.items():
            if count < most:
                found.setdefault(name, []).append(f"{count} of {most} seeds in {problem.name}")
    return {name: ", ".join(places) for name, places in found.items()}


def ranked(problems: Sequence[Problem], scores: Sequence[Mapping[str, Cell]], metric: str) -> Ranking | None:
    """The ranking of the methods that all seeds of all problems have a value of; None for fewer than two.

    A method that lacks seeds which others have is left out: those that survived may be the easy ones.
    """
    short = short_of_seeds(problems)
    everywhere = [
        method
        for method in methods_of(problems)
        if method not in short and all(method in own and own[method].whole for own in scores)
    ]
    if len(scores) < 2 or len(everywhere) < 2:
        return None
    values = np.array([[own[method].value for method in everywhere] for own in scores], dtype=np.float64)
    return ranking(tuple(everywhere), values, better(metric))


def across(
    problems: Sequence[Problem],
    scores: Sequence[Mapping[str, Cell]],
    metric: str,
    found: Ranking | None,
    *,
    baseline: str = "",
    at_end: bool = False,
) -> Table:
    """Methods × problems, with mean rank, wins and gains over the baseline where there is a ranking.

    `at_end`: scores are those of whole runs, however much work each method has done.
    """
    methods = methods_of(problems)
    columns: list[tuple[Column, Sequence[Cell]]] = [(text_column("method"), [Cell(name) for name in methods])]
    for problem, own in zip(problems, scores, strict=True):
        columns.append((metric_column(metric, problem.name), [own.get(name, Cell()) for name in methods]))
    if found is not None:
        columns += _ranks(methods, found)
        if baseline in found.methods:
            columns += _gains(methods, columns[1:], found, metric, baseline)
    title = f"{metric_column(metric).title.capitalize()} over {len(problems)} problems"
    notes = _notes(methods, found, baseline, short_of_seeds(problems))
    if at_end and found is not None:
        notes += _unequal_work(problems, found.methods)
    return from_columns(title, columns, notes)


def _unequal_work(problems: Sequence[Problem], methods: Sequence[str]) -> list[str]:
    """Who has trained more clients than others before being ranked."""
    spent = {
        name: fmean(
            total(run, "client_trainings")
            for problem in problems
            for case in problem.cases
            if case.name == name
            for run in case.runs
        )
        for name in methods
    }
    least = min(spent.values())
    more = [f"{name} {own / least:.2f} times" for name, own in spent.items() if own > MUCH_MORE * least > 0]
    if not more:
        return []
    return [
        f"Not at equal work: at the end, {', '.join(more)} as many client trainings as the method with the "
        "fewest; --at client_trainings ranks at equal work."
    ]


def _ranks(methods: Sequence[str], found: Ranking) -> list[tuple[Column, Sequence[Cell]]]:
    ranks = dict(zip(found.methods, found.ranks.T, strict=True))
    wins = dict(zip(found.methods, found.wins, strict=True))
    return [
        (
            Column("mean rank", form=".2f", better=Better.LOWER, bounds=(1.0, float(len(found.methods)))),
            [over_seeds(ranks[name]) if name in ranks else Cell() for name in methods],
        ),
        (Column("wins", form=".0f"), [Cell(float(wins[name])) if name in wins else Cell() for name in methods]),
    ]


def _gains(
    methods: Sequence[str],
    columns: Sequence[tuple[Column, Sequence[Cell]]],
    found: Ranking,
    metric: str,
    baseline: str,
) -> list[tuple[Column, Sequence[Cell]]]:
    """Differences to the baseline: their mean over problems, and in how many the method was the better one."""
    scores = np.array([[float(cell.value) for cell in cells] for _, cells in columns[: found.problems]])
    gaps = np.round(scores - scores[:, [methods.index(baseline)]], 12)
    shown, wins = metric_column(metric), better(metric).value
    unit = "points" if shown.unit == "%" else shown.unit
    gap = Column(f"against {baseline}", unit, shown.scale, "+.2f" if unit == "points" else "+.4f")
    ranked = [name in found.methods and name != baseline for name in methods]
    return [
        (gap, [over_seeds(own) if known else Cell() for own, known in zip(gaps.T, ranked, strict=True)]),
        (
            Column("better, worse", form=""),
            [
                Cell(f"{np.sum(wins * own > 0)}, {np.sum(wins * own < 0)}" if known else "–")
                for own, known in zip(gaps.T, ranked, strict=True)
            ],
        ),
    ]


def _notes(methods: Sequence[str], found: Ranking | None, baseline: str, short: Mapping[str, str]) -> list[str]:
    fewer = "; ".join(f"{name} ({where})" for name, where in short.items())
    without = [f"Without a rank, because others have more seeds: {fewer}."] if short else []
    if found is None:
        return ["No ranks: it takes two methods that every problem has, with all of its seeds.", *without]
    count, problems = len(found.methods), found.problems
    over_problems = "mean ranks and differences" if baseline in found.methods else "mean ranks"
    notes = [
        SPREAD_NOTE,
        f"Ranks: of the means over seeds, 1 is best, {count} methods in {problems} problems; wins: problems in "
        "which no method was better.",
        f"The spread of {over_problems} is over problems, not over seeds.",
        *without,
    ]
    left = [name for name in methods if name not in found.methods and name not in short]
    if left:
        notes.append(f"Without a rank, because a problem lacks them: {', '.join(left)}.")
    if not math.isnan(found.friedman_p):
        notes.append(f"Friedman's test that all are alike: p = {found.friedman_p:.3g}.")
    limit = f"Nemenyi's critical difference of mean ranks ({LEVEL:.0%}, all pairs) is {found.critical:.2f}"
    if not found.decidable:
        notes.append(
            f"{limit}, which {count} methods cannot reach in so few problems: it takes at least "
            f"{problems_needed(count)} to tell any two of them apart."
        )
    else:
        notes.append(f"{limit}: mean ranks that are closer cannot be told apart.")
    if baseline in found.methods:
        notes.append(f"Against {baseline}: mean difference over problems; better, worse: in how many of them.")
    return notes


def problems_needed(methods: int) -> int:
    """The fewest problems in which the best and the worst of this many methods can be told apart."""
    # The critical difference falls with the root of the number of problems.
    return math.ceil((critical_difference(methods, 1) / (methods - 1)) ** 2)
