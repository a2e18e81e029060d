"""Runs what is missing of a league, chooses options on the seeds for tuning, and judges the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from muster.core.errors import MusterError, SweepError
from muster.experiment.jobs import JobObserver, run_experiments
from muster.league.file import MethodTable
from muster.league.planning import LeaguePlan, PlannedRun, Point
from muster.report.compare import Comparison, Options, judge
from muster.report.compare.measures import UNITS, Budget, spends, total, value
from muster.results.cases import Case
from muster.results.problems import Problem
from muster.results.store import Store
from muster.server.result import Result

Place = tuple[str, str, str]


@dataclass(frozen=True)
class LeagueTable:
    """One table of methods: the judgement at equal client trainings, and by other units of work."""

    table: MethodTable
    comparison: Comparison
    #: Unit of work → the comparison when all have spent equally much of it; only those with two problems or more.
    by_unit: Mapping[str, Comparison]

    @property
    def seeds(self) -> dict[str, int]:
        """Problem → how many seeds each of its methods has."""
        return {judged.name: len(judged.baseline.runs) for judged in self.comparison.judged}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a league."""

    plan: LeaguePlan
    tables: tuple[LeagueTable, ...]
    #: (table, problem, method) → options that tuning chose.
    chosen: Mapping[Place, Point]
    #: Why a run has no result, by "method, problem, seed".
    failed: Mapping[str, str]
    #: "method, problem (table)" → how many of its seeds have a result; those with fewer than all are not judged.
    short: Mapping[str, str]
    #: Everything was done before a stop was requested.
    complete: bool


def sweep_name(plan: LeaguePlan) -> str:
    """What the runs are called in the store."""
    return f"{plan.league.name} {plan.scale_name}"


def run_league(
    plan: LeaguePlan,
    store: Store,
    *,
    jobs: int | None = None,
    workers: int | None = None,
    observer: JobObserver | None = None,
    only_known: bool = False,
) -> Outcome:
    """Run what the store does not have; a league that was stopped continues where it was.

    `only_known`: run nothing, and judge what is there.
    """
    tuning = plan.tuning_runs()
    run: Callable[..., _Found] = partial(_known, store=store)
    if not only_known:
        run = partial(_run, store=store, jobs=jobs, workers=workers, observer=observer)
    tuned, why, complete = run(tuning, name=f"{sweep_name(plan)} tuning")
    chosen = choose(plan, tuning, tuned)
    if not complete:
        return Outcome(plan, (), chosen, why, {}, complete)
    runs = plan.runs(chosen)
    results, failed, complete = run(runs, name=sweep_name(plan))
    short: dict[str, str] = {}
    tables = []
    for table in plan.league.tables:
        problems, left = _problems(plan, table, runs, results)
        short |= left
        if problems:
            tables.append(_table(plan, table, problems))
    return Outcome(plan, tuple(tables), chosen, why | failed, short, complete)


#: Results by fingerprint, errors by run, and whether nothing is left to do.
_Found = tuple[dict[str, Result], dict[str, str], bool]


def _run(
    runs: Sequence[PlannedRun],
    *,
    store: Store,
    name: str,
    jobs: int | None,
    workers: int | None,
    observer: JobObserver | None,
) -> _Found:
    if not runs:
        return {}, {}, True
    experiments = [run.experiment for run in runs]
    done = run_experiments(experiments, store, jobs=jobs, workers=workers, sweep_name=name, observer=observer)
    results, _, _ = _known(runs, store=store, name=name)
    failed = {
        f"{run.experiment.name}, seed {run.experiment.seed}": done.failed[key]
        for run in runs
        if (key := run.experiment.fingerprint) in done.failed
    }
    return results, failed, not done.stopped


def _known(runs: Sequence[PlannedRun], *, store: Store, name: str) -> _Found:
    """What the store has, whichever sweep it was run in."""
    complete = {run.fingerprint: run for run in store.runs(status="complete")}
    wanted = {run.experiment.fingerprint for run in runs}
    return {key: store.result(complete[key], parameters=False) for key in wanted & complete.keys()}, {}, True


def choose(plan: LeaguePlan, runs: Sequence[PlannedRun], results: Mapping[str, Result]) -> dict[Place, Point]:
    """For each method and problem the point of its grid with the best mean; of equal ones the first.

    Points are compared after as many client trainings as the cheapest of them has, and a point counts only with
    all of its seeds.
    """
    by_place: dict[Place, dict[str, list[PlannedRun]]] = {}
    for run in runs:
        points = by_place.setdefault((run.table, run.problem, run.method), {})
        points.setdefault(repr(sorted(run.point.items())), []).append(run)
    chosen: dict[Place, Point] = {}
    for place, points in by_place.items():
        whole = [own for own in points.values() if all(run.experiment.fingerprint in results for run in own)]
        found = [[results[run.experiment.fingerprint] for run in own] for own in whole]
        if not found:
            continue
        least = Budget("client_trainings", min(total(run, "client_trainings") for own in found for run in own))
        scores = [
            fmean(value(run, "accuracy", last=plan.league.last, within=least) for run in own) for own in found
        ]
        best = max(range(len(scores)), key=lambda at: -math.inf if math.isnan(scores[at]) else scores[at])
        chosen[place] = whole[best][0].point
    return chosen


def _table(plan: LeaguePlan, table: MethodTable, problems: Sequence[Problem]) -> LeagueTable:
    options = Options(last=plan.league.last, at="client_trainings", baseline=table.baseline)
    by_unit = {}
    for unit in UNITS:
        having = [problem for problem in problems if all(spends(run, unit) for run in problem.runs)]
        if len(having) > 1:
            ranks = Options(last=plan.league.last, at=unit, baseline=table.baseline, tables=("ranks",))
            by_unit[unit] = judge(having, ranks)
    return LeagueTable(table, judge(problems, options), by_unit)


def _problems(
    plan: LeaguePlan, table: MethodTable, runs: Sequence[PlannedRun], results: Mapping[str, Result]
) -> tuple[list[Problem], dict[str, str]]:
    """The problems with every method that has a result of each seed, and what is said about the others.

    A mean over the seeds that did not fail is not comparable with one over all. The baseline is always among the
    methods: a problem in which it lacks a seed is left out.
    """
    found, short = [], {}
    for problem in plan.problems:
        seeds = plan.seeds[problem.name]
        cases: dict[str, list[Result]] = {name: [] for name in plan.rows(table, problem)}
        for run in runs:
            result = results.get(run.experiment.fingerprint)
            if (run.table, run.problem) == (table.name, problem.name) and result is not None:
                cases[run.method].append(result)
        whole = {name: own for name, own in cases.items() if len(own) == seeds}
        for name in (name for name in cases if name not in whole):
            what = "the problem is" if name == table.baseline else "it is"
            short[f"{name}, {problem.name} ({table.name})"] = (
                f"{len(cases[name])} of {seeds} seeds have a result, so {what} not in the table"
            )
        if table.baseline in whole:
            found.append(Problem(problem.name, tuple(Case(name, tuple(own)) for name, own in whole.items())))
    return found, short


def failures(outcome: Outcome) -> MusterError | None:
    """The error to end with where runs have no result."""
    if not outcome.failed:
        return None
    return SweepError(
        f"{len(outcome.failed)} runs of the league have no result",
        fix="see the page for the reasons; the same command tries them again, and nothing else",
    )
