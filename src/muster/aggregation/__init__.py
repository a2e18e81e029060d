"""Aggregation methods: how much each answer counts."""

from typing import TYPE_CHECKING

from muster.aggregation.base import (
    Aggregated,
    Aggregator,
    MeanAggregator,
    StreamingAggregator,
    aggregators,
)
from muster.core.modules import imported_when_used
from muster.updates.table import Updates

__all__ = [
    "Aggregated",
    "Aggregator",
    "MeanAggregator",
    "StreamingAggregator",
    "Updates",
    "aggregators",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__, classes=True)
