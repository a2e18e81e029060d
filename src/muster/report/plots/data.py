"""What pictures read from results, with an error that helps where it is not there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.report.intervals import mean_band
from muster.report.tables import UNBOUNDED

if TYPE_CHECKING:
    from muster.server.result import Result

Series = tuple[Floats, Floats]

_BAND_POINTS = 60


def required(results: Sequence[Result]) -> Sequence[Result]:
    """The results, or an error if there is nothing to draw."""
    if not results:
        raise ConfigError("there is nothing to draw: no results", fix="choose runs with `muster runs`")
    for result in results:
        if not result.records:
            raise ConfigError(f"the run '{result.name}' has no rounds yet", fix="leave it out, or go on with it")
    return results


def never_measured(metric: str, result: Result) -> ConfigError:
    """The error that also says what could be drawn instead."""
    return ConfigError(
        f"'{metric}' was never measured in the run '{result.name}'",
        fix=f"choose another metric, such as {result.main_metric} (metric=… in Python, or --metric)",
    )


def series(result: Result, metric: str, per: str) -> Series:
    """A metric over rounds or work (`bytes`: up and down together); errors where one of them was not measured."""
    if per == "bytes":
        (down, values), (up, _) = result.series(metric, "bytes_down"), result.series(metric, "bytes_up")
        work = down + up
    else:
        work, values = result.series(metric, per)
    if not len(values):
        raise never_measured(metric, result)
    if per == "virtual_seconds" and not work.any():
        raise ConfigError(
            f"the run '{result.name}' has no virtual time",
            fix="give the experiment a section [devices], or choose another unit: round, client_trainings, bytes",
        )
    return np.asarray(work, dtype=np.float64), np.asarray(values, dtype=np.float64)


def units(results: Sequence[Result], per: str | Sequence[str] | None) -> tuple[str, ...]:
    """The units of work of a picture's panels; by default rounds and, where all runs have it, virtual time."""
    if per is None:
        timed = all(result.metrics[-1]["virtual_seconds"] > 0 for result in results)
        return ("round", "virtual_seconds" if timed else "client_trainings")
    return (per,) if isinstance(per, str) else tuple(per)


def averaged(runs: Sequence[Series], points: int = 400) -> tuple[Floats, Floats, Floats]:
    """Mean and standard deviation over runs, on the axis that they share.

    Where runs were measured at different amounts of work, they are compared at evenly spaced ones, with straight
    lines between measurements, and only where all of them were measured.
    """
    axis, values = aligned(runs, points)
    deviation = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(axis))
    return axis, values.mean(axis=0), deviation


def banded(
    runs: Sequence[Series], points: int = 400, limits: tuple[float, float] = UNBOUNDED
) -> tuple[Floats, Floats, Floats, Floats]:
    """Axis, mean, and the two ends of its confidence interval within `limits`, as `averaged`.

    Of long curves the interval is computed at some of the points, with straight lines between them.
    """
    axis, values = aligned(runs, points)
    at = np.unique(np.linspace(0, len(axis) - 1, min(len(axis), _BAND_POINTS)).round().astype(np.int64))
    low, high = (np.interp(axis, axis[at], end) for end in mean_band(values[:, at]))
    return axis, values.mean(axis=0), np.maximum(low, limits[0]), np.minimum(high, limits[1])


def aligned(runs: Sequence[Series], points: int = 400) -> tuple[Floats, Floats]:
    """The axis that runs share, and runs × points on it."""
    first = runs[0][0]
    if all(np.array_equal(first, x) for x, _ in runs):
        axis = first
    else:
        low, high = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
        if low > high:
            raise ConfigError("the runs of a case have no amount of work in common")
        axis = np.linspace(low, high, points)
    return axis, np.array([np.interp(axis, x, y) for x, y in runs])


def population(result: Result) -> int:
    """How many clients there are."""
    highest = max((client for round in result.selections for ids in round for client in ids), default=-1)
    return max(result.history.clients, highest + 1)


def participants(result: Result) -> list[Ints]:
    """The ids that trained in each round; a client that trained twice is there twice."""
    return [np.array(list(chain.from_iterable(trainings)), dtype=np.int64) for trainings in result.selections]


def client_accuracy(result: Result) -> Floats:
    """The last measured accuracy on every client's own test data, of the clients that have any."""
    last = next((r.client_accuracy for r in reversed(result.records) if r.client_accuracy is not None), None)
    if last is None:
        raise ConfigError(
            f"the run '{result.name}' has no accuracies of individual clients",
            fix="give clients test data of their own (docs/partitions.md); plain files have none",
        )
    values = np.asarray(last, dtype=np.float64)
    return values[~np.isnan(values)]
