"""What is handed to people's own methods are values: nobody who gets one can change it for others."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from muster.aggregation.base import Aggregated
from muster.core.component import Population
from muster.engine.base import AskOrder, Evaluation, Failed, TrainOrder
from muster.privacy.account import Privacy
from muster.selection.base import Ask, Train, View
from muster.server.limits import ClientLimits
from muster.server.origin import Origin
from muster.server.persistence import Rounds, Saved
from muster.server.record import Report
from muster.server.result import Result
from muster.signals.base import Replies
from muster.updates.filters import Filtered, filters
from muster.updates.guard import Guard
from muster.updates.table import Updates

VALUES = [
    Aggregated,
    Ask,
    AskOrder,
    ClientLimits,
    Evaluation,
    Failed,
    Filtered,
    Guard,
    Origin,
    Population,
    Privacy,
]
VALUES += [Replies, Report, Result, Rounds, Saved, Train, TrainOrder, Updates, View]


@pytest.mark.parametrize(
    "kind", [*VALUES, *(filters.get(name) for name in filters)], ids=lambda kind: kind.__name__
)
def test_a_value_stays_what_it_is(kind: Any) -> None:
    value = object.__new__(kind)
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(kind)[0].name, None)
