"""Buffered asynchrony: the server moves on with every k answers, from any clients (FedBuff; k = 1: FedAsync)."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.pacing.base import Pacing, Wait, check_limit, pacings


@pacings.register("buffered")
@dataclass(frozen=True)
class Buffered(Pacing):
    """Keep `in_flight` clients working; aggregate whenever `k` of them have answered.

    Each round starts cohorts, as the selection chooses them, for as long as there is room for a whole one, and
    then takes the next k answers of all that are under way.
    """

    #: Clients that train at the same time.
    in_flight: int
    #: Answers of one aggregation; None: as many as the last cohort had clients.
    k: int | None = None
    #: How many aggregations an answer may have missed; None: any number.
    max_staleness: int | None = None

    late_count = True
    fills = True

    def check(self, population: Population) -> None:
        if self.in_flight < 1:
            raise ConfigError(f"bad value for 'pacing.in_flight': {self.in_flight}", expected="at least 1")
        if self.k is not None and self.k < 1:
            raise ConfigError(f"bad value for 'pacing.k': {self.k}", expected="at least 1")
        if self.k is not None and self.in_flight < self.k:
            raise ConfigError(
                f"pacing.in_flight is {self.in_flight}, but pacing.k waits for {self.k} answers",
                expected="in_flight ≥ k",
            )
        if self.in_flight > population.clients:
            raise ConfigError(
                f"pacing.in_flight is {self.in_flight}, but the federation has {population.clients} clients",
                expected=f"at most {population.clients}",
            )
        check_limit(self.max_staleness)

    def cautions(self, population: Population) -> list[str]:
        cohort = population.cohort
        if cohort is None or cohort > self.in_flight:
            return []
        # Cohorts start whole: room that is smaller than a cohort stays empty.
        most = self.in_flight // cohort * cohort
        if most > (self.k or cohort):
            return []
        return [
            f"buffered pacing is synchronous here: cohorts of {cohort} start whole, so at most {most} of "
            f"{self.in_flight} clients are under way, and all of them are waited for; for asynchrony take "
            f"in_flight ≥ {(self.k or cohort) + cohort}, or smaller cohorts (selection.clients_per_round)"
        ]

    def wait(self, started: int, durations: Floats) -> Wait:
        return Wait(self.k or started, own=False)

    def has_room(self, under_way: int, cohort: int) -> bool:
        return under_way + cohort <= self.in_flight
