"""What a pacing decides: how long a training waits, and for how many answers.

Selectors do not see it. They say who is to train; the pacing says when the server moves on with the answers that
have arrived, and whether the others still count when they arrive.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Bools, Floats, Ints
from muster.core.component import Component
from muster.core.errors import ConfigError
from muster.core.registry import Registry


@dataclass(frozen=True)
class Wait:
    """What the server waits for: enough answers, a moment, or until no client is left that could answer."""

    #: This many answers are enough.
    answers: int
    #: Only answers to this training count for that; False: those of all clients under way.
    own: bool = True
    #: After this many seconds the server moves on with what it has.
    seconds: float = math.inf
    #: It does not move on before this many seconds, unless no client is left that could answer.
    least: float = 0.0


class Pacing(Component):
    """Decides when a training counts as done. Implementations are frozen dataclasses without state.

    >>> from muster.pacing import Pacing, Wait
    >>> class Majority(Pacing):
    ...     '''Move on when more than half have answered.'''
    ...
    ...     def wait(self, started, durations):
    ...         return Wait(answers=started // 2 + 1)
    >>> Majority().wait(10, np.empty(0)).answers
    6
    """

    #: Whether late clients continue, and their answers count when they arrive. Otherwise they are given up on.
    late_count: bool = False
    #: Whether cohorts start for as long as there is room for one more. Otherwise a training waits before the next.
    fills: bool = False
    #: Answers to models that are older than this many aggregations are discarded; None: none are.
    max_staleness: int | None = None
    #: Whether `wait` looks at the durations of earlier trainings.
    looks_at_durations: bool = False

    def asked(self, wanted: int) -> int:
        """How many clients are told to train where the answers of `wanted` are to be used."""
        return wanted

    @abstractmethod
    def wait(self, started: int, durations: Floats) -> Wait:
        """What a training of `started` clients waits for.

        `durations`: seconds of the last training of every client that has trained; inf where the server did not
        wait for the end. Empty unless `looks_at_durations`.
        """

    def wait_for(self, started: int, durations: Floats, under_way: Floats) -> Wait:
        """As `wait`, for a pacing that looks at the clients under way.

        `under_way`: seconds of the last training of each client under way, as far as the server has waited for it;
        NaN: it has never trained.
        """
        return self.wait(started, durations)

    def answers(self, started: int) -> int | None:
        """How many answers an aggregation gets where cohorts of `started` clients start; None: that varies."""
        return self.wait(started, np.empty(0)).answers

    def has_room(self, under_way: int, cohort: int) -> bool:
        """Whether a cohort of this size may start while `under_way` clients are working."""
        return True


def landing(
    ends: Floats, ties: Floats, *, counts: Bools, own: Bools, wait: Wait, now: float
) -> tuple[Ints, float]:
    """Which clients under way have ended when the server moves on, in the order in which they did, and when.

    One entry for each client under way: when it answers or leaves (`ends`), the order among those that end at the
    same moment (`ties`), whether what then arrives is an answer that counts, and whether this training started it.
    """
    order = np.lexsort((ties, ends))
    waited_for = own[order] if wait.own else np.ones(len(order), dtype=np.bool_)
    enough = np.flatnonzero(np.cumsum(waited_for & counts[order]) >= wait.answers)
    awaited = np.flatnonzero(waited_for)
    if wait.answers <= 0 or not len(awaited):
        return order[:0], now
    last = enough[0] if len(enough) else awaited[-1]
    moment, limit = max(now, float(ends[order[last]])), now + wait.seconds
    if moment > limit:
        return order[ends[order] <= limit], limit
    if moment >= now + wait.least:
        return order[: last + 1], moment
    moment = min(now + wait.least, limit, max(moment, float(ends[order[awaited[-1]]])))
    return order[ends[order] <= moment], moment


def check_limit(max_staleness: int | None) -> None:
    """Refuse a limit that is not a number of aggregations."""
    if max_staleness is not None and max_staleness < 0:
        raise ConfigError(
            f"bad value for 'pacing.max_staleness': {max_staleness}",
            expected="zero or a positive number of aggregations",
        )


pacings: Registry[Pacing] = Registry("pacing", "muster.pacing", "muster.pacings")
