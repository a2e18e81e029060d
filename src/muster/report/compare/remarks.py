"""What a reader of a comparison has to be warned of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.config.identity import determining
from muster.report.compare.grouping import varying
from muster.report.compare.measures import UNITS, federated, spends
from muster.report.compare.sections import shared_units
from muster.results.cases import Case, differing
from muster.results.problems import Problem
from muster.server.result import Result

#: Settings that make the problem itself another one.
_PROBLEM = ("data.", "partition.", "model.", "availability.", "devices.")
#: Settings that are compared on purpose.
_METHOD = ("selection.", "aggregation.", "algorithm.", "pacing.", "privacy.", "filters")
_COHORT = "selection.clients_per_round"
_LONGEST_LIST = 6
#: How the remark begins that cases are about different problems.
DIFFERENT_PROBLEMS = "Not the same problem"


def about_results(taken: Sequence[Result], left_out: Sequence[Result], found: Sequence[Problem]) -> Iterator[str]:
    """What happened to the results on their way into cases."""
    if left_out:
        names = _listed([f"{run.name} seed {run.config.get('seed', 0)}: {_progress(run)}" for run in left_out])
        yield f"Unfinished runs are left out ({names}); --unfinished takes them, too."
    repeated = len(taken) - len({id(run) for problem in found for run in problem.runs})
    if repeated:
        yield f"{repeated} of the runs repeat a case and seed: the longest of each counts."
    lonely = [problem.name for problem in found if len(problem.cases) == 1]
    if lonely and len(found) > 1:
        yield f"Problems with one method only, which are compared with nothing: {_listed(lonely)}."
    short = [run for run in taken if not run.complete]
    if short:
        names = _listed([f"{run.name} seed {run.config.get('seed', 0)}: {_progress(run)}" for run in short])
        yield f"Some runs are unfinished ({names}): equal budgets are as small as the shortest of them."


def about_cases(found: Sequence[Case], by: Sequence[str] = ()) -> Iterator[str]:
    """What makes cases hard to compare with each other."""
    yield from _seeds(found, pooled=bool(by))
    rounds = {case.name: sorted({len(run.records) for run in case.runs}) for case in found}
    if len({count for counts in rounds.values() for count in counts}) > 1:
        each = _listed([f"{name}: {' or '.join(map(str, counts))}" for name, counts in rounds.items()])
        yield f"Different numbers of rounds ({each}): look at equal budgets, not at the end."
    configs = [determining(run.config) for case in found for run in case.runs]
    different = [key for key in differing(configs) if key not in ("seed", "rounds")]
    problem = [key for key in different if key.startswith(_PROBLEM)]
    if problem:
        yield f"{DIFFERENT_PROBLEMS}: {_listed(problem)} differ."
    other = [key for key in different if not key.startswith((*_PROBLEM, *_METHOD))]
    if other:
        yield f"Beside methods these settings differ: {_listed(other)}."
    if _COHORT in different and not by:
        yield (
            f"Cohorts of different sizes ({_COHORT}): look at equal budgets, or judge them apart with "
            f"--problem {_COHORT}."
        )
    inside = sorted({key for case in found for key in varying(case.runs)})
    if inside:
        yield f"Runs of one case differ in {_listed(inside)}: the spread is not over seeds alone."
    runs = [run for case in found for run in case.runs]
    partial = [
        unit for unit in UNITS if unit not in shared_units(found) and any(spends(run, unit) for run in runs)
    ]
    if partial:
        yield f"Not compared per {UNITS[partial[0]].one}: only some of the runs have measured it."
    alone = [case.name for case in found if not any(federated(run) for run in case.runs)]
    if alone and len(alone) < len(found):
        yield f"No federation: {_listed(alone)}. Its rounds are epochs, and it is compared by nothing else."


def _seeds(found: Sequence[Case], pooled: bool) -> Iterator[str]:
    sets = {case.name: sorted(set(case.seeds)) for case in found}
    if len({tuple(seeds) for seeds in sets.values()}) > 1:
        each = _listed([f"{name}: {', '.join(map(str, seeds))}" for name, seeds in sets.items()])
        yield f"Not the same seeds ({each}): tests pair only those that two cases share."
    if not pooled and all(len(case.runs) == 1 for case in found):
        yield "One seed of each: there is no spread, and small differences are noise."


def _progress(run: Result) -> str:
    return f"{len(run.records)} of {run.config.get('rounds', '?')} rounds"


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _LONGEST_LIST
    return "; ".join(words[:_LONGEST_LIST]) + (f"; and {more} more" if more > 0 else "")
