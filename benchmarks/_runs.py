"""What the scripts behind docs/results share: they run what is missing, and write tables and pictures.

Every run has its own folder, named after case, seed and the fingerprint of its settings, with a checkpoint. So a
script can be stopped at any time, and the same command goes on where it was; a changed setting starts a new run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes

from muster.config.experiment import Experiment, from_dict
from muster.console.output import err
from muster.console.progress import StopAfterRound, progress_for
from muster.core.errors import ConfigError, nearest
from muster.experiment.runner import run
from muster.report.compare.measures import value
from muster.report.render import cell_text
from muster.report.tables import Column, over_seeds
from muster.results.files import holds_result, load_result
from muster.server.result import Result

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

#: Case → its results, one a seed.
Results: TypeAlias = dict[str, list[Result]]
Measure: TypeAlias = Callable[[Result], float]


@dataclass(frozen=True)
class Case:
    """A line of a comparison: its name, and the sections in which it differs from the other lines."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A comparison: what all runs share, and the cases."""

    name: str
    shared: Mapping[str, Any]
    cases: Sequence[Case]

    def experiment(self, case: Case, seed: int, rounds: int) -> Experiment:
        values = dict(self.shared)
        for section, change in case.changes.items():
            values[section] = {**values.get(section, {}), **change}
        return from_dict({**values, "name": case.name, "seed": seed, "rounds": rounds})

    def chosen(self, names: Sequence[str] | None) -> list[Case]:
        known = [case.name for case in self.cases]
        for name in names or ():
            if name not in known:
                raise ConfigError(f"unknown method '{name}'", expected=nearest(name, known))
        return [case for case in self.cases if not names or case.name in names]


def options(description: str | None, rounds: int, seeds: Sequence[int]) -> argparse.Namespace:
    """The command line that all of the scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of each run (default: {rounds})")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help=f"default: {list(seeds)}")
    parser.add_argument("--methods", nargs="+", help="only these (default: all)")
    parser.add_argument("--workers", type=int, help="worker processes (default: one a core)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder of the runs (default: runs)")
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs", help="folder of page and picture (default: docs)"
    )
    return parser.parse_args()


def run_missing(study: Study, chosen: argparse.Namespace) -> Results:
    """The results of all cases and seeds; those that are not finished yet are run. Seed by seed."""
    cases = study.chosen(chosen.methods)
    results: Results = {case.name: [] for case in cases}
    for seed in chosen.seeds:
        for number, case in enumerate(cases, start=1):
            experiment = study.experiment(case, seed, chosen.rounds)
            folder = chosen.runs / study.name / f"{case.name}-seed{seed}-{experiment.fingerprint[:8]}"
            err.print(f"[{number}/{len(cases)}] {case.name}, seed {seed}: {folder}", markup=False, soft_wrap=True)
            results[case.name].append(_result(experiment, folder, chosen.workers))
    return results


def _result(experiment: Experiment, folder: Path, workers: int | None) -> Result:
    if (stored := _stored(folder)) is not None:
        return stored
    with progress_for(err, experiment.title, json_lines=False) as progress, StopAfterRound() as stopper:
        result = run(experiment, workers, out=folder, resume=True, observers=[progress, stopper])
    if not result.complete:
        raise SystemExit("stopped; the same command goes on from here")
    return result


def _stored(folder: Path) -> Result | None:
    """A finished run from the plain files that it left; None if it is not finished."""
    stored = load_result(folder) if holds_result(folder) else None
    return stored if stored is not None and stored.complete else None


def last_rounds(metric: str, rounds: int = 5) -> Measure:
    """The mean over the last evaluations of a run."""
    return lambda result: value(result, metric, last=rounds)


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Mean ± standard deviation; the number alone when there is only one."""
    return cell_text(over_seeds(values), Column("", form=form))


def column(results: Results, measure: Measure, form: str = ".1f", scale: float = 1.0) -> list[str]:
    """One cell a case."""
    return [spread([scale * measure(result) for result in runs], form) for runs in results.values()]


def percent(results: Results, measure: Measure) -> list[str]:
    return column(results, measure, scale=100.0)


def ordered(results: Results, measure: Measure) -> Results:
    """The cases, best first."""
    return dict(sorted(results.items(), key=lambda item: -statistics.fmean(measure(result) for result in item[1])))


def table(columns: Mapping[str, Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table that is given by its columns."""
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def band(axes: Axes, runs: Sequence[Result], metric: str = "accuracy", **look: Any) -> None:
    """The mean curve of a case over rounds, and the range of its seeds."""
    x = runs[0].series(metric)[0]
    y = np.array([result.series(metric)[1] for result in runs])
    axes.plot(x, y.mean(axis=0), **look)
    if len(runs) > 1:
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=look.get("color"), alpha=0.18, linewidth=0)


def write_measured(page: Path, content: str) -> None:
    """Replace what stands between the two marks of a page; the words around it are written by people."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {page.stem}\n\n{BEGIN}\n{END}\n"
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"{page} has no place for the tables", expected=f"one {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n\n{content.strip()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    err.print(f"Written: {page}", soft_wrap=True)
