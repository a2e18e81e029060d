"""Runs what is missing of the papers' tables and figures, through the store, and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.experiment.jobs import JobObserver, run_experiments
from muster.papers.outcome import Reproduced, outcome
from muster.papers.planning import Plan
from muster.results.store import Run, Store


def name_of_sweep(plan: Plan) -> str:
    """What the runs of a plan are called in the store."""
    return f"{plan.entry.id} {plan.scale}"


def reproduce(
    plans: Sequence[Plan],
    store: Store,
    *,
    jobs: int | None = None,
    workers: int | None = None,
    observer: JobObserver | None = None,
) -> tuple[list[Reproduced], bool]:
    """The comparisons of all plans, and whether everything was done before a stop was requested.

    Runs that several plans share are run once, and what the store has is not run again.
    """
    experiments = [run.experiment for plan in plans for run in plan.runs]
    for plan in plans:
        if plan.runs:
            store.plan([run.experiment for run in plan.runs], name_of_sweep(plan))
    stopped, failed = False, {}
    if experiments:
        # Seed by seed: something of everything comes first.
        experiments.sort(key=lambda experiment: experiment.seed)
        done = run_experiments(experiments, store, jobs=jobs, workers=workers, observer=observer)
        stopped, failed = done.stopped, done.failed
    known = {run.fingerprint: run for run in store.runs(status="complete")}
    return [_compared(plan, known, store, failed) for plan in plans], not stopped


def _compared(plan: Plan, known: Mapping[str, Run], store: Store, failed: Mapping[str, str]) -> Reproduced:
    runs = {one: known[one] for one in {run.experiment.fingerprint for run in plan.runs} & known.keys()}
    found = outcome(plan, {fingerprint: store.result(run) for fingerprint, run in runs.items()}, failed)
    return replace(found, made_by=tuple(sorted({run.code_version for run in runs.values()})))


def missing(plan: Plan, store: Store) -> int:
    """How many of a plan's runs are not complete."""
    known = {run.fingerprint for run in store.runs(status="complete")}
    return len({run.experiment.fingerprint for run in plan.runs} - known)
