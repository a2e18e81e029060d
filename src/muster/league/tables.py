"""The league's tables: ranks, gains over the baseline, what methods cost besides, one table for each problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

import numpy as np

from muster.league.gains import Gain, Gains, gains_of, of_method, tally
from muster.league.outcome import LeagueTable, Outcome
from muster.league.planning import seeds_in_words
from muster.report.compare.across import methods_of, reached
from muster.report.compare.comparison import Judged, budget_of, with_intervals
from muster.report.compare.measures import (
    UNITS,
    disclosures,
    known_metrics,
    metric_column,
    overhead,
    participation,
    value,
)
from muster.report.intervals import interval_words
from muster.report.tables import (
    AMOUNTS,
    SHARES,
    Better,
    Cell,
    Column,
    Table,
    from_columns,
    over_seeds,
    text_column,
)
from muster.server.result import Result

Columns = list[tuple[Column, Sequence[Cell]]]

#: Of differences in accuracy.
POINTS = Column("", "points", 100.0, "+.1f")


def named(title: str, column: Column) -> Column:
    return Column(title, column.unit, column.scale, column.form, column.better)


def all_methods(table: LeagueTable) -> list[str]:
    return methods_of([judged.problem for judged in table.comparison.judged])


def by_gain(table: LeagueTable, gains: Gains) -> list[str]:
    """All methods but the baseline, the largest mean gain first."""
    mean = {name: mean_gain(gains, name) for name in all_methods(table) if name != table.table.baseline}
    return sorted(mean, key=lambda name: -math.inf if math.isnan(mean[name]) else mean[name], reverse=True)


def mean_gain(gains: Gains, method: str) -> float:
    found = [own.value for own in of_method(gains, method).values()]
    return fmean(found) if found else math.nan


# --- ranks and gains ---------------------------------------------------------------------------------------------


def ranks(table: LeagueTable) -> Table | None:
    """Mean ranks at equal client trainings, the best first, with those by other units of work; None without."""
    found = table.comparison.ranking
    if found is None:
        return None
    places = sorted(range(len(found.methods)), key=lambda place: float(found.mean[place]))
    methods = [found.methods[place] for place in places]
    columns: Columns = [
        (text_column("method"), [Cell(name) for name in methods]),
        (
            Column("mean rank", form=".1f", better=Better.LOWER, bounds=(1.0, float(len(methods)))),
            [over_seeds(found.ranks[:, place]) for place in places],
        ),
        (Column("wins", form=".0f"), [Cell(float(found.wins[place])) for place in places]),
    ]
    same = []
    for unit, comparison in table.by_unit.items():
        own = comparison.ranking
        if own is None or unit == "client_trainings":
            continue
        if own.methods == found.methods and np.array_equal(own.ranks, found.ranks):
            same.append(UNITS[unit].many)
            continue
        mean = dict(zip(own.methods, own.mean, strict=True))
        few = f", {own.problems} problems" if own.problems < found.problems else ""
        column = Column(f"at equal {UNITS[unit].many}{few}", form=".1f", better=Better.LOWER)
        columns.append((column, [Cell(float(mean[name])) if name in mean else Cell() for name in methods]))
    notes = [
        f"1 is best, {len(methods)} methods in {found.problems} problems, at equal client trainings; in brackets "
        f"the 95 % interval over problems ({interval_words([found.problems])}). Wins: problems in which none "
        "was better."
    ]
    if len(columns) > 3:
        notes.append("The other columns are mean ranks when all have spent equally much of another unit of work.")
    if same:
        notes.append(f"Ranks are the same at equal {' and at equal '.join(same)}.")
    left = [name for name in all_methods(table) if name not in methods]
    if left:
        notes.append(f"Without a rank, because not all problems have them: {', '.join(left)}.")
    return with_intervals(from_columns("Ranks", columns, notes))


def gain_table(table: LeagueTable, gains: Gains) -> Table:
    """What each method gained over the baseline: over problems, and where most and least."""
    baseline, methods = table.table.baseline, by_gain(table, gains)
    own = {name: of_method(gains, name) for name in methods}
    columns: Columns = [
        (text_column("method"), [Cell(name) for name in methods]),
        (named("mean gain", POINTS), [over_seeds(gain.value for gain in own[name].values()) for name in methods]),
        (Column("problems", form=".0f"), [Cell(float(len(own[name]))) for name in methods]),
        *(
            (Column(title, form=".0f"), [Cell(float(tally(gains, name)[at])) for name in methods])
            for at, title in enumerate(("clearly better in", "clearly worse in"))
        ),
        (text_column("most in"), [Cell(_extreme(own[name], max)) for name in methods]),
        (text_column("least in"), [Cell(_extreme(own[name], min)) for name in methods]),
    ]
    notes = [
        f"Points of accuracy over {baseline} at equal client trainings, pairs of the same seed. Mean gain: over "
        "problems, with its 95 % interval over problems. Clearly: the 95 % interval over seeds, "
        "in brackets beside most and least, does not contain zero; one in twenty would not by chance. "
        f"Intervals: {interval_words([len(gains), *table.seeds.values()])}.",
    ]
    return with_intervals(from_columns(f"Gains over {baseline}", columns, notes))


def _extreme(own: Mapping[str, Gain], which: Callable[..., str]) -> str:
    if not own:
        return ""
    problem = which(own, key=lambda name: own[name].value)
    return f"{problem}: {own[problem]}"


def when(table: LeagueTable, gains: Gains, profiles: Mapping[str, Mapping[str, float]]) -> Table:
    """Problem by problem: what it is like, who was best, who was clearly better than the baseline."""
    problems = [judged.name for judged in table.comparison.judged]
    best = {name: max(gains[name], key=lambda method: gains[name][method].value, default="") for name in problems}
    better = {name: [m for m, gain in gains[name].items() if gain.clearly_better] for name in problems}
    for name, found in better.items():
        found.sort(key=lambda method: -gains[name][method].value)
    columns: Columns = [
        (text_column("problem"), [Cell(name) for name in problems]),
        (Column("seeds", form=".0f"), [Cell(float(table.seeds[name])) for name in problems]),
        (text_column("clients × samples"), [Cell(_size(profiles[name])) for name in problems]),
        (
            Column("label divergence", "bits", 1.0, ".2f"),
            [Cell(profiles[name]["label divergence, bits"]) for name in problems],
        ),
        (
            text_column("largest gain"),
            [Cell(_largest(gains[name], best[name])) for name in problems],
        ),
        (
            text_column(f"clearly better than {table.table.baseline}"),
            [Cell(_listed(better[name])) for name in problems],
        ),
    ]
    return from_columns(f"{table.table.name}: who was ahead where", columns)


def _largest(gains: Mapping[str, Gain], best: str) -> str:
    return f"{best}: {gains[best]}" if best and gains[best].value > 0 else "none"


def _size(profile: Mapping[str, float]) -> str:
    samples = 10 ** profile["log10 of a client's samples, median"]
    return f"{10 ** profile['log10 of clients']:,.0f} × {samples:,.0f}"


def _listed(names: Sequence[str], most: int = 6) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + rest) or "none"


# --- besides accuracy --------------------------------------------------------------------------------------------


def beside(table: LeagueTable) -> Table:
    """Measures besides accuracy: means over problems of each problem's mean over seeds."""
    problems = [judged.problem for judged in table.comparison.judged]
    methods = methods_of(problems)
    cases = {name: [c for problem in problems for c in problem.cases if c.name == name] for name in methods}

    def over_problems(measure: Callable[[Result], float]) -> list[Cell]:
        return [over_seeds(fmean(map(measure, case.runs)) for case in cases[name]) for name in methods]

    everybody = [run for problem in problems for run in problem.runs]
    columns: Columns = [(text_column("method"), [Cell(name) for name in methods])]
    for metric, title in (("client_accuracy_worst_tenth", "worst tenth of clients"),):
        if all(metric in known_metrics(run) for run in everybody):
            column = Column(title, "%", 100.0, ".1f", Better.HIGHER)
            columns.append((column, over_problems(partial(value, metric=metric))))
    selects = table.table.compares == "selection"
    if selects:
        column = Column("Gini of participation", form=".2f", better=Better.LOWER, bounds=SHARES)
        columns.append((column, over_problems(lambda run: participation(run)["gini"])))
    columns += [
        (
            Column("extra bytes per round", "kB", 1e-3, ",.1f", Better.LOWER),
            over_problems(lambda run: overhead(run).extra_down + overhead(run).extra_up),
        ),
        (
            Column("server per round", "ms", 1000.0, ",.1f", Better.LOWER, AMOUNTS),
            over_problems(lambda run: overhead(run).server_seconds),
        ),
        (text_column("clients tell besides the update"), [Cell(told(table, name)) for name in methods]),
    ]
    notes = [
        "Means over problems at the end of the runs, with 95 % intervals over problems "
        f"({interval_words([len(problems)])})."
    ]
    if selects:
        notes.append("Gini: of the rounds in which each client took part, 0 is even.")
    notes.append(
        "Extra bytes: beyond one model to and from every client that trains. Server: selection and aggregation, "
        "on the machine that ran it."
    )
    if any(len(own) < len(problems) for own in cases.values()):
        notes.append("Methods that only some problems have are means over those.")
    return with_intervals(from_columns("Besides accuracy", columns, notes))


def told(table: LeagueTable, method: str) -> str:
    """What clients disclose besides their updates, in all problems together."""
    cases = [case for judged in table.comparison.judged for case in judged.cases if case.name == method]
    return (
        "; ".join(sorted({kind for case in cases for run in case.runs for kind in disclosures(run)})) or "nothing"
    )


# --- details -----------------------------------------------------------------------------------------------------


def of_problem(table: LeagueTable, judged: Judged) -> Table:
    """One problem: every method's score and its difference to the baseline, the best first."""
    options = table.comparison.options
    at = budget_of(options.at, judged.cases)
    (scores,) = reached([judged.problem], options.metric, last=options.last, at=[at])
    gains = gains_of(table.comparison)[judged.name]
    methods = sorted(scores, key=lambda name: -float(scores[name].value))
    columns: Columns = [
        (text_column("method"), [Cell(name) for name in methods]),
        (metric_column(options.metric), [scores[name] for name in methods]),
        (
            text_column(f"against {judged.baseline.name}, points"),
            [Cell(str(gains[name]) if name in gains else "") for name in methods],
        ),
        (
            text_column("significant (Holm)"),
            [Cell(gains[name].significant if name in gains else "") for name in methods],
        ),
    ]
    seeds = table.seeds[judged.name]
    note = f"{seeds_in_words([seeds])}; intervals: {interval_words([seeds])}." if seeds > 1 else "1 seed."
    return with_intervals(from_columns(f"{table.table.name}: {judged.name}", columns, [note]))


def tuned(outcome: Outcome) -> Table:
    """What was tried for each method, and which options were chosen for which problems."""
    tables = {table.name: table for table in outcome.plan.league.tables}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for (table, problem, method), point in outcome.chosen.items():
        grid = tables[table].grid_for(method, problem)
        tried = "; ".join(f"`{key} = {', '.join(map(str, values))}`" for key, values in grid.items())
        words = ", ".join(f"{key} = {chosen}" for key, chosen in point.items())
        found.setdefault((table, method, tried, f"`{words}`"), []).append(problem)
    # Names of problems may have commas.
    rows = [(*row, "; ".join(problems)) for row, problems in sorted(found.items(), key=lambda item: item[0][:3])]
    titles = ("table", "method", "tried", "chosen", "for which problems")
    columns = [(text_column(title), [Cell(row[at]) for row in rows]) for at, title in enumerate(titles)]
    return from_columns("Chosen options", columns)
