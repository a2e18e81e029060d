"""Which pictures a report shows, each with a text for people who do not see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure

from muster.report.compare import Comparison, Judged, Options
from muster.report.compare.measures import better, known_metrics, metric_column, timing, total, value
from muster.report.flights import flights_of
from muster.report.plots import (
    draw_ranks,
    plot_client_accuracy,
    plot_cluster_numbers,
    plot_clusters,
    plot_curves,
    plot_fairness,
    plot_selection_frequency,
    plot_selection_map,
    plot_sensitivity,
    plot_staleness,
    plot_time_to_target,
    plot_timeline,
)
from muster.report.plots.canvas import label
from muster.report.plots.cluster_numbers import MAX_RUNS
from muster.results.cases import Case, by_settings, differing, flat
from muster.server.result import Result

#: More lines than this in one picture cannot be told apart, and more maps make a page heavy.
MAX_LINES, MAX_MAPS, MAX_PARAMETERS = 12, 6, 3
#: Of more problems only the curves are drawn.
MAX_PROBLEMS = 4
#: A timeline of more rounds would have no bars that can be seen.
MAX_ROUNDS = 60
_UNITS = ("round", "client_trainings", "bytes", "virtual_seconds")


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is needed."""

    section: str
    alt: str
    draw: Callable[[], Figure]
    #: Which problem it shows; empty: all of them, or the only one.
    problem: str = ""


def gallery(comparison: Comparison) -> list[Picture]:
    """The pictures of a comparison, in the order of the page."""
    metric = comparison.options.metric
    pictures = [*_ranks(comparison)]
    for judged in comparison.judged:
        own = _of_problem(judged, comparison.options, brief=len(comparison.judged) > MAX_PROBLEMS)
        pictures += [replace(picture, problem=judged.name) for picture in own]
    return [*pictures, *_sensitivity(comparison, metric)]


def _of_problem(judged: Judged, options: Options, *, brief: bool) -> list[Picture]:
    """The pictures of one problem: `brief`: its curves alone."""
    found = [_named_alike(case) for case in drawn(judged, options.metric)]
    runs = [run for case in found for run in case.runs]
    curves = [*_curves(found, runs, options.metric)]
    if brief:
        return curves
    return [
        *curves,
        *_targets(found, runs, judged, options),
        *_fairness(runs, options.metric),
        *_clients(runs),
        *_maps(found),
        *_times(found, runs),
        *_groups(found),
        *_cluster_numbers(runs),
    ]


def _named_alike(case: Case) -> Case:
    """The case with its name on all of its runs, as pictures show it."""
    return replace(case, runs=tuple(replace(run, name=case.name) for run in case.runs))


def drawn(judged: Judged, metric: str) -> list[Case]:
    """The cases of a problem that are drawn: all, or of many the best at the end."""
    cases = list(judged.cases)
    if len(cases) <= MAX_LINES:
        return cases
    sign = better(metric).value
    best = sorted(cases, key=lambda case: -sign * fmean(value(run, metric) for run in case.runs))[:MAX_LINES]
    return [case for case in cases if case in best]


def target(judged: Judged, options: Options) -> float:
    """The first target of a problem; as in its tables, by default the baseline's mean at the end."""
    if options.targets:
        return options.targets[0]
    return fmean(value(run, options.metric, last=options.last) for run in judged.baseline.runs)


def _ranks(comparison: Comparison) -> Iterator[Picture]:
    ranking, metric = comparison.ranking, comparison.options.metric
    if ranking is not None:
        ends = "; ".join(f"{name} {rank:.2f}" for name, rank in zip(ranking.methods, ranking.mean, strict=True))
        alt = f"Mean ranks over {ranking.problems} problems, and which cannot be told apart: {ends}."
        title = f"{metric_column(metric).title} over {ranking.problems} problems"
        yield Picture("Ranks over problems", alt, partial(draw_ranks, ranking, title))


def _units(runs: Sequence[Result]) -> list[str]:
    return [unit for unit in _UNITS if all(total(run, unit) > 0 for run in runs)]


def _curves(found: Sequence[Case], runs: Sequence[Result], metric: str) -> Iterator[Picture]:
    ends = "; ".join(f"{case.name} {_shown(metric, [value(run, metric) for run in case.runs])}" for case in found)
    for unit in _units(runs):
        alt = f"{label(metric)} over {label(unit)}. At the end: {ends}."
        yield Picture("Curves", alt, partial(plot_curves, runs, metric, per=unit))
    if metric != "loss" and all("loss" in known_metrics(run) for run in runs):
        losses = "; ".join(f"{case.name} {fmean(value(run, 'loss') for run in case.runs):.3g}" for case in found)
        alt = f"{label('loss')} over rounds. At the end: {losses}."
        yield Picture("Curves", alt, partial(plot_curves, runs, "loss", per="round"))


def _targets(found: Sequence[Case], runs: Sequence[Result], judged: Judged, options: Options) -> Iterator[Picture]:
    metric, goal = options.metric, target(judged, options)
    if len(found) < 2 or math.isnan(goal):
        return
    for unit in _units(runs):
        alt = f"Bars: {label(unit)} until {label(metric)} reached {_shown(metric, [goal])}; numbers in the tables."
        draw = partial(plot_time_to_target, runs, goal, metric=metric, per=unit)
        yield Picture("Work until the target", alt, draw)


def _fairness(runs: Sequence[Result], metric: str) -> Iterator[Picture]:
    for measure, words in (
        ("jain", "how evenly clients took part"),
        ("client_accuracy_worst_tenth", "the accuracy of the worst tenth of clients"),
    ):
        if measure == "jain" or all(measure in known_metrics(run) for run in runs):
            alt = f"Scatter: {label(metric)} against {words}, one point per case; numbers in the tables."
            yield Picture("Fairness", alt, partial(plot_fairness, runs, measure, metric))


def _clients(runs: Sequence[Result]) -> Iterator[Picture]:
    alt = "Histograms of the rounds in which clients took part, one per case; Gini coefficients in the tables."
    yield Picture("Clients", alt, partial(plot_selection_frequency, runs))
    if all(any(record.client_accuracy is not None for record in run.records) for run in runs):
        alt = "Histograms of the final accuracy on clients' own test data, one per case."
        yield Picture("Clients", alt, partial(plot_client_accuracy, runs))


def _maps(found: Sequence[Case]) -> Iterator[Picture]:
    for case in found[:MAX_MAPS]:
        alt = f"Map of clients and rounds: when each client trained, {case.name}, seed {case.seeds[0]}."
        yield Picture("Who took part when", alt, partial(plot_selection_map, [case.runs[0]]))


def _times(found: Sequence[Case], runs: Sequence[Result]) -> Iterator[Picture]:
    """Who worked when, where there is virtual time; how old answers were, where some were not up to date."""
    timed = [case for case in found if len(flights_of(case.runs[0]))]
    for case in timed[:MAX_MAPS]:
        facts = timing(case.runs[0])
        alt = (
            f"Trainings over virtual time, {case.name}, seed {case.seeds[0]}: {facts['at_work']:.1f} clients at "
            f"work on average, {facts['wasted']:.0%} of the trainings wasted."
        )
        yield Picture("Time", alt, partial(plot_timeline, [case.runs[0]], last=MAX_ROUNDS))
    late = [run for run in runs if flights_of(run).staleness.any()]
    if late:
        alt = "Histograms of how many aggregations answers had missed, one a case; means in the tables."
        yield Picture("Time", alt, partial(plot_staleness, late))


def _groups(found: Sequence[Case]) -> Iterator[Picture]:
    grouping = [case for case in found if _has_groups(case.runs[0])]
    for case in grouping[:MAX_MAPS]:
        alt = f"Groups of clients over rounds and their sizes, {case.name}, seed {case.seeds[0]}."
        yield Picture("Groups of clients", alt, partial(plot_clusters, [case.runs[0]]))


def _cluster_numbers(runs: Sequence[Result]) -> Iterator[Picture]:
    clustering = [run for run in runs if any("clusters" in record.notes for record in run.records)][:MAX_RUNS]
    if clustering:
        alt = "Heat map of how many clusters the selection found in each round, one row per run."
        yield Picture("Groups of clients", alt, partial(plot_cluster_numbers, clustering))


def _has_groups(result: Result) -> bool:
    return any("clusters" in record.notes or len(record.trainings) > 1 for record in result.records)


def _sensitivity(comparison: Comparison, metric: str) -> Iterator[Picture]:
    """A line for every numeric setting that was varied while the others were kept."""
    runs = [run for case in comparison.cases for run in case.runs]
    keys = [key for key in differing([run.config for run in runs]) if key not in ("name", "seed")]
    for key in [key for key in keys if not key.startswith(("engine.", "checkpoint."))][:MAX_PARAMETERS]:
        having = [run for run in runs if isinstance(flat(run.config).get(key), int | float)]
        lines = [group for group in by_settings(having, free=(key,)) if _varies(group, key)]
        if lines and len(lines) <= MAX_LINES:
            alt = f"{label(metric)} at the end over {key}; mean and its interval over seeds."
            members = [run for line in lines for run in line]
            yield Picture("Sensitivity", alt, partial(plot_sensitivity, members, key, metric=metric))


def _varies(group: Sequence[Result], key: str) -> bool:
    return len({flat(run.config)[key] for run in group}) > 1


def _shown(metric: str, values: Sequence[float]) -> str:
    column = metric_column(metric)
    return f"{column.shown(fmean(values))}{f' {column.unit}' if column.unit else ''}"
