"""What the league has found, as a small table that comes with Muster, and advice from its nearest problems."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from statistics import fmean

from muster._version import __version__
from muster.core.errors import ConfigError, OutputError
from muster.experiment.inspection import inspect_experiment
from muster.heterogeneity.advice import Recommendation, why_no_choice
from muster.heterogeneity.inspection import Inspection
from muster.heterogeneity.profile import NEAR, distance, profile, steps_apart
from muster.league.gains import Gain, gains_of
from muster.league.outcome import LeagueTable, Outcome
from muster.league.planning import seeds_in_words

#: Most problems that advice looks at, and methods that it names.
MAX_PROBLEMS, MAX_METHODS = 3, 6
_SHIPPED = "evidence.json"


@dataclass(frozen=True)
class Tried:
    """A problem of a league: what its federation is like, and what methods gained over the baseline there."""

    name: str
    #: What was compared: "selection" or "aggregation".
    compares: str
    baseline: str
    seeds: int
    #: The numbers of `muster.heterogeneity.profile`, means over seeds.
    profile: dict[str, float]
    #: Points of accuracy over the baseline at equal client trainings, as shares.
    gains: dict[str, Gain]


@dataclass(frozen=True)
class Evidence:
    """All problems of a league."""

    league: str
    scale: str
    version: str
    problems: tuple[Tried, ...]


# --- made by a league --------------------------------------------------------------------------------------------


def evidence_of(outcome: Outcome) -> Evidence:
    plan, profiles = outcome.plan, _profiles(outcome)
    tried = [one for table in outcome.tables for one in _tried(table, profiles)]
    return Evidence(plan.league.name, plan.scale_name, __version__, tuple(tried))


def _profiles(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Of every problem that was judged, means over seeds: a partition depends on its seed."""
    judged = {own.name for table in outcome.tables for own in table.comparison.judged}
    table = outcome.plan.league.tables[0]
    found: dict[str, list[dict[str, float]]] = {}
    for run in outcome.plan.runs({}):
        if run.problem in judged and (run.table, run.method) == (table.name, table.baseline):
            found.setdefault(run.problem, []).append(profile(inspect_experiment(run.experiment)))
    return {name: {number: fmean(one[number] for one in own) for number in own[0]} for name, own in found.items()}


def _tried(table: LeagueTable, profiles: dict[str, dict[str, float]]) -> list[Tried]:
    own = table.table
    gains = gains_of(table.comparison)
    return [
        Tried(name, own.compares, own.baseline, table.seeds[name], profiles[name], dict(found))
        for name, found in gains.items()
    ]


def write_evidence(evidence: Evidence, path: Path) -> Path:
    text = json.dumps(_rounded(asdict(evidence)), indent=1, ensure_ascii=False, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", fix="choose another file with --evidence"
        ) from error
    return path


def _rounded(value: object) -> object:
    """Rounded to the digits that mean something; what is unknown is left out."""
    match value:
        case float():
            return None if math.isnan(value) else round(value, 5)
        case dict():
            return {key: _rounded(own) for key, own in value.items()}
        case list() | tuple():
            return [_rounded(own) for own in value]
    return value


# --- read --------------------------------------------------------------------------------------------------------


def shipped_evidence() -> Evidence:
    """Of the league whose results are published with this version."""
    return evidence_from((resources.files("muster.league") / _SHIPPED).read_text(encoding="utf-8"), _SHIPPED)


def evidence_from(text: str, name: str) -> Evidence:
    try:
        values = json.loads(text)
        problems = tuple(
            Tried(**{**row, "gains": {method: _gain(own) for method, own in row["gains"].items()}})
            for row in values.pop("problems")
        )
        return Evidence(**values, problems=problems)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{name} is not what a league writes: {error}", fix="write it again with `muster league --evidence`"
        ) from error


def _gain(row: dict[str, float | str | None]) -> Gain:
    return Gain(**{key: math.nan if value is None else value for key, value in row.items()})  # type: ignore[arg-type]


# --- advice ------------------------------------------------------------------------------------------------------


def recommended(inspection: Inspection, evidence: Evidence | None = None) -> Inspection:
    """The inspection with what the league (the shipped one by default) found on federations like this one."""
    return replace(inspection, recommendation=recommend(inspection, evidence or shipped_evidence()))


def recommend(inspection: Inspection, evidence: Evidence) -> Recommendation:
    """The selection methods that beat the baseline on the nearest problems, or why none is named."""
    if not inspection.choice:
        return Recommendation(
            "No selection method is recommended", why_no_choice(inspection.clients, inspection.cohort)
        )
    own = profile(inspection)
    tried = [problem for problem in evidence.problems if problem.compares == "selection"]
    if not tried:
        return Recommendation(
            "No selection method is recommended", "There are no results of a league: run one with `muster league`."
        )
    ordered = sorted(tried, key=lambda problem: distance(own, problem.profile))
    near = [problem for problem in ordered if distance(own, problem.profile) <= NEAR][:MAX_PROBLEMS]
    seeds = seeds_in_words([problem.seeds for problem in tried])
    source = f"league of {len(tried)} problems, {seeds}, scale {evidence.scale!r}"
    if not near:
        return _nothing_near(own, ordered[0], source)
    return _from_near(own, near, source)


def _nothing_near(own: dict[str, float], nearest: Tried, source: str) -> Recommendation:
    apart = steps_apart(own, nearest.profile)
    worst = max(apart, key=apart.__getitem__)
    return Recommendation(
        "No selection method is recommended: the league has tried nothing like this",
        f"The nearest problem of the {source} is {nearest.name}, {distance(own, nearest.profile):.1f} steps away, "
        f"and {NEAR:g} would be near; they differ most in {worst} ({own[worst]:.2f} here, "
        f"{nearest.profile[worst]:.2f} there). Compare methods with `{nearest.baseline}` on your own data, at "
        "equal client trainings.",
    )


def _from_near(own: dict[str, float], near: Sequence[Tried], source: str) -> Recommendation:
    """Methods that are clearly better in the nearest problem, and clearly worse in none of those that are near."""
    nearest, baseline = near[0], near[0].baseline
    shared = set.intersection(*(set(problem.gains) for problem in near))
    means = {method: fmean(problem.gains[method].value for problem in near) for method in shared}
    ordered = sorted(means, key=lambda method: (-means[method], method))
    harmful = {method for problem in near for method, gain in problem.gains.items() if gain.clearly_worse}
    better = [method for method in ordered if nearest.gains[method].clearly_better and method not in harmful]
    where = "; ".join(f"{problem.name} ({distance(own, problem.profile):.1f} steps away)" for problem in near)
    text = (
        f"Nearest problems of the {source}: {where}. Points of accuracy over `{baseline}` at equal client "
        "trainings, with 95 % intervals over seeds."
    )
    if not better:
        said = (
            f" Largest mean gain: `{ordered[0]}`, {nearest.gains[ordered[0]]} in {nearest.name}."
            if ordered
            else ""
        )
        return Recommendation(f"No selection method clearly beat {baseline} on federations like this", text + said)
    rows = tuple((method, *(str(problem.gains[method]) for problem in near)) for method in better[:MAX_METHODS])
    return Recommendation(
        f"On the federation most like this, {', '.join(f'`{method}`' for method in better[:3])} beat {baseline}",
        f"{text} Methods are named that are clearly better in the nearest problem and clearly worse in none of "
        f"these. {len(nearest.gains)} methods were tried there: one in forty would be named by chance alone.",
        ("method", *(problem.name for problem in near)),
        rows,
    )
