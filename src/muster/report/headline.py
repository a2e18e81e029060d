"""Who is best, by how much, and how sure: the sentences that a comparison begins with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from muster.report.compare.across import MUCH_MORE
from muster.report.compare.comparison import Comparison, Judged, Options, budget_of
from muster.report.compare.measures import Budget, amount_text, better, metric_column, spends, total, value
from muster.report.compare.pairs import LEVEL, pairs, seeds_needed
from muster.report.compare.significance import paired_test
from muster.results.cases import Case


@dataclass(frozen=True)
class Standing:
    """A case and its mean score."""

    case: Case
    score: float


def standings(judged: Judged, options: Options) -> list[Standing]:
    """Cases by their mean score, the best first; cases that miss a seed's score are left out.

    As in the tables: at the end, or after the work of `options.at`.
    """
    at = budget_of(options.at, judged.cases)
    found = [
        Standing(case, fmean(value(run, options.metric, last=options.last, within=at) for run in case.runs))
        for case in judged.cases
    ]
    sign = better(options.metric).value
    return sorted((each for each in found if not math.isnan(each.score)), key=lambda each: -sign * each.score)


def headlines(comparison: Comparison) -> list[list[str]]:
    """For every problem the sentences of `headline_of`; where there are several, the first names the problem."""
    if len(comparison.judged) == 1:
        return [headline_of(comparison.alone, comparison.options)]
    found = [(one.name, headline_of(one, comparison.options)) for one in comparison.judged]
    return [[f"{name}: {first}", *others] for name, (first, *others) in found]


def headline_of(judged: Judged, options: Options) -> list[str]:
    """Of one problem: the first sentence says who is best, the second by how much, the third how sure that is."""
    order, metric = standings(judged, options), options.metric
    at = budget_of(options.at, judged.cases)
    what = f"{metric_column(metric).title}{_when(at)}"
    if not order:
        return [f"No run has measured {what}."]
    best = order[0]
    if len(order) == 1:
        return [f"{best.case.name} reaches {_shown(metric, best.score)} {what}.", *_seeds(best.case)]
    return list(_sentences(judged, options, order, at))


def _sentences(judged: Judged, options: Options, order: Sequence[Standing], at: Budget | None) -> Iterator[str]:
    best, second = order[:2]
    metric = options.metric
    top = _shown(metric, best.score)
    first = f"{best.case.name} is best with {top} {metric_column(metric).title}{_when(at)}"
    if top == _shown(metric, second.score):
        yield f"{best.case.name} and {second.case.name} share the first place{_when(at)}: {top}."
    else:
        yield f"{first}, {_gap(metric, best.score - second.score)} ahead of {second.case.name}."
    rival = judged.baseline if judged.baseline is not best.case else second.case
    if rival is not second.case:
        other = next((each.score for each in order if each.case is rival), math.nan)
        if not math.isnan(other):
            yield f"The baseline {rival.name} reaches {_shown(metric, other)}."
    comparisons = len(order) - 1 if options.correction == "holm" else 1
    yield _certainty(options, best.case, rival, comparisons, at)
    if at is None:
        yield from _at_equal_work(judged, options, best)


def _at_equal_work(judged: Judged, options: Options, best: Standing) -> Iterator[str]:
    """Who is best after equally many client trainings, where the best at the end has had more of them."""
    if not all(spends(run, "client_trainings") for case in judged.cases for run in case.runs):
        return
    spent = {case.name: fmean(total(run, "client_trainings") for run in case.runs) for case in judged.cases}
    more = spent[best.case.name] / min(spent.values())
    if more <= MUCH_MORE:
        return
    equal = replace(options, at="client_trainings")
    first, *_ = standings(judged, equal)
    own = next((each.score for each in standings(judged, equal) if each.case is best.case), math.nan)
    leads = "it is still best" if first.case is best.case else f"{first.case.name} is best"
    reached = "" if first.case is best.case else f", and {best.case.name} has {_shown(options.metric, own)}"
    yield (
        f"Not at equal work: {best.case.name} has trained {more:.2f} times as many clients as the method with the "
        f"fewest; after equally many {leads} with {_shown(options.metric, first.score)}{reached}."
    )


def _certainty(options: Options, best: Case, rival: Case, comparisons: int, at: Budget | None) -> str:
    """What the seeds can say about the best against another case; `comparisons`: how many p is corrected for."""
    own, theirs = pairs(best, rival, lambda run: value(run, options.metric, last=options.last, within=at))
    if len(own) == 0:
        return (
            f"{best.name} and {rival.name} share no seed with a value: whether that is chance, only the same "
            f"seeds can tell, at least {seeds_needed(comparisons)}."
        )
    if len(own) == 1:
        return f"One seed: whether that is chance, only more can tell, at least {seeds_needed(comparisons)}."
    test = paired_test(own, theirs)
    wins = int(np.sum(better(options.metric).value * test.differences > 0))
    if not test.differences.any():
        return f"{best.name} and {rival.name} are equal in every seed."
    ahead = f"Ahead of {rival.name} in {wins} of {len(own)} seeds"
    if test.smallest_p * comparisons > LEVEL:
        return f"{ahead}: too few to be sure, it takes at least {seeds_needed(comparisons)}."
    p = min(1.0, test.p * comparisons)
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    sure = "more than chance explains" if p <= LEVEL else "which chance explains as well"
    return f"{ahead}: {sure} (p ≤ {p:.3g}{corrected})."


def _seeds(case: Case) -> list[str]:
    return ["One seed: nothing is known about the spread."] if len(case.runs) == 1 else []


def _when(at: Budget | None) -> str:
    return f" after {amount_text(at)}" if at else ""


def _shown(metric: str, score: float) -> str:
    column = metric_column(metric)
    return f"{column.shown(score)}{f' {column.unit}' if column.unit else ''}"


def _gap(metric: str, difference: float) -> str:
    column = metric_column(metric)
    return f"{column.shown(abs(difference))} points" if column.unit == "%" else column.shown(abs(difference))
