"""Pisces' pace: aggregations far enough apart that the slowest working client misses at most a given number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.pacing.base import Pacing, Wait, check_limit, pacings


def aggregation_interval(under_way: Floats, bound: float, unknown: float) -> float:
    """Seconds between aggregations: the longest expected training under way ÷ how many it may miss.

    `under_way`: seconds of each one's last training; NaN: it has none, and is assumed to need `unknown` seconds.
    """
    return float(np.where(np.isnan(under_way), unknown, under_way).max(initial=0.0)) / bound


@pacings.register("pisces")
@dataclass(frozen=True)
class PiscesPace(Pacing):
    """Keep `in_flight` clients working; aggregate what has arrived after each interval (Jiang et al., 2022)."""

    #: Clients that train at the same time.
    in_flight: int
    #: How many aggregations the slowest may miss (b); None: as many as `in_flight`.
    bound: float | None = None
    #: Seconds that a client's first training is assumed to last; None: as long as the longest known.
    first_latency: float | None = None
    #: How many aggregations an answer may have missed; None: any number.
    max_staleness: int | None = None

    late_count = True
    fills = True
    looks_at_durations = True

    def check(self, population: Population) -> None:
        if not 1 <= self.in_flight <= population.clients:
            raise ConfigError(
                f"bad value for 'pacing.in_flight': {self.in_flight}",
                expected=f"1 to {population.clients}, the number of clients",
            )
        for key in ("bound", "first_latency"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(
                    f"bad value for 'pacing.{key}': {value}", expected="a positive number, or nothing"
                )
        check_limit(self.max_staleness)

    def wait(self, started: int, durations: Floats) -> Wait:
        return self.wait_for(started, durations, durations[np.isfinite(durations)])

    def wait_for(self, started: int, durations: Floats, under_way: Floats) -> Wait:
        unknown = self.first_latency
        if unknown is None:
            unknown = float(durations[np.isfinite(durations)].max(initial=0.0))
        return Wait(1, own=False, least=aggregation_interval(under_way, self.bound or self.in_flight, unknown))

    def answers(self, started: int) -> int | None:
        return None  # as many as come in an interval

    def has_room(self, under_way: int, cohort: int) -> bool:
        return under_way + cohort <= self.in_flight
