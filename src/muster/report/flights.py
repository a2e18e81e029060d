"""Who worked from when to when: the trainings of a run as columns, for pictures and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Bools, Floats, Ints
from muster.server.record import OUTCOMES

if TYPE_CHECKING:
    from muster.server.result import Result

#: Outcomes of trainings that were wasted through no fault of the client: it was a matter of time.
WASTED = ("left", "late", "stale")


@dataclass(frozen=True)
class FlightTable:
    """Trainings that have ended, one entry each, in the order in which the server noticed."""

    clients: Ints
    #: Round in which each ended, from 1.
    rounds: Ints
    started: Floats
    ended: Floats
    #: When the server went on.
    taken: Floats
    staleness: Ints
    #: Positions in `OUTCOMES`.
    outcomes: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.clients)

    def rows(self, which: Bools | Ints) -> FlightTable:
        return FlightTable(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def ended_as(self, *outcomes: str) -> Bools:
        marks: Bools = np.isin(self.outcomes, [OUTCOMES.index(outcome) for outcome in outcomes])
        return marks


def flights_of(result: Result) -> FlightTable:
    """All trainings of a run that have ended; none where there is no virtual time."""
    flown = [(record, training.flown) for record in result.records for training in record.trainings]
    counts = [len(own.clients) for _, own in flown]

    def column(name: str, dtype: type) -> Any:
        return np.array([value for _, own in flown for value in getattr(own, name)], dtype=dtype)

    return FlightTable(
        column("clients", np.int64),
        np.repeat(np.array([record.round for record, _ in flown], dtype=np.int64), counts),
        column("started", np.float64),
        column("ended", np.float64),
        np.repeat(np.array([record.ended for record, _ in flown]), counts),
        column("staleness", np.int64),
        np.array([OUTCOMES.index(name) for _, own in flown for name in own.outcome], dtype=np.uint8),
    )


def at_work(flights: FlightTable, moments: Floats) -> Ints:
    """How many clients are under way at each of these moments."""
    begun = np.searchsorted(np.sort(flights.started), moments, side="right")
    done = np.searchsorted(np.sort(flights.ended), moments, side="right")
    return begun - done
