"""How long experiments will take: from runs that are in the store, and from a short trial of the others."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.config.experiment import EvaluationOptions, Experiment
from muster.config.identity import pace_kind
from muster.core.errors import MusterError
from muster.core.registry import build
from muster.experiment.runner import run
from muster.results.store import Run

#: Of the rounds of a trial the first warms up, the second is one without an evaluation, the last one with.
TRIAL_ROUNDS = 3
#: No new trial begins after this many seconds.
TRIAL_SECONDS = 60.0


@dataclass(frozen=True)
class Pace:
    """How fast experiments of one kind go."""

    seconds_a_round: float
    #: Loading and partitioning data, building the model: once, as the runs of a sweep share what was loaded.
    setup_seconds: float = 0.0
    #: "runs in the store", "a trial", or "a guess from the others".
    source: str = ""
    #: Why it cannot be run, where a trial has shown that.
    fails: str = ""


def known_paces(runs: Sequence[Run]) -> dict[str, Pace]:
    """The pace of every kind of run that has rounds in the store."""
    found: dict[str, list[float]] = {}
    for one in runs:
        if one.done and one.seconds:
            found.setdefault(pace_kind(one.config), []).append(one.seconds / one.done)
    return {kind: Pace(float(np.mean(paces)), source="runs in the store") for kind, paces in found.items()}


def calibrate(
    experiments: Sequence[Experiment],
    known: Mapping[str, Pace],
    workers: int | None = None,
    told: Callable[[Experiment], None] = lambda experiment: None,
    budget: float = TRIAL_SECONDS,
) -> dict[str, Pace]:
    """The pace of every kind of experiment; kinds that are not known are tried for three rounds."""
    paces, start = dict(known), time.monotonic()
    kinds = {pace_kind(experiment.described()): experiment for experiment in experiments}
    for kind, experiment in kinds.items():
        if kind not in paces and (not paces or time.monotonic() - start < budget):
            told(experiment)
            paces[kind] = _trial(experiment, workers)
    measured = [pace for pace in paces.values() if not pace.fails]
    guess = Pace(
        float(np.mean([pace.seconds_a_round for pace in measured])) if measured else float("nan"),
        float(np.mean([pace.setup_seconds for pace in measured])) if measured else float("nan"),
        source="a guess from the others",
    )
    return {kind: paces.get(kind, guess) for kind in kinds}


def _trial(experiment: Experiment, workers: int | None) -> Pace:
    start = time.monotonic()
    try:
        every = build(EvaluationOptions, experiment.evaluation, "evaluation").every
        evaluation = {**experiment.evaluation, "every": TRIAL_ROUNDS}
        # Trackers are for real runs.
        short = dataclasses.replace(experiment, rounds=TRIAL_ROUNDS, evaluation=evaluation, tracking={})
        result = run(short, workers)
    except MusterError as error:
        return Pace(0.0, source="a trial", fails=error.problem)
    seconds = [costs.seconds for costs in result.ledger.rounds]
    *_, plain, evaluated = seconds
    a_round = plain + max(0.0, evaluated - plain) / every
    return Pace(a_round, max(0.0, time.monotonic() - start - sum(seconds)), source="a trial")


def seconds_left(left: Mapping[str, int], kinds: Mapping[str, str], paces: Mapping[str, Pace], jobs: int) -> float:
    """Time until everything is done: `left` has the rounds that each run lacks, `kinds` its kind; NaN: unknown.

    Runs are worked off in order by `jobs` processes that do not slow each other down.
    """
    if not any(left.values()):
        return 0.0
    if not paces:
        return float("nan")
    typical = Pace(float(np.mean([pace.seconds_a_round for pace in paces.values()])))
    busy, setup = np.zeros(max(1, jobs)), 0.0
    for run_id, rounds in left.items():
        if rounds:
            pace = paces.get(kinds[run_id], typical)
            setup = max(setup, pace.setup_seconds)
            busy[busy.argmin()] += rounds * pace.seconds_a_round
    return setup + float(busy.max())
