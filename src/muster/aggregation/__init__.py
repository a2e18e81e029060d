"""Aggregation methods: how much each answer counts."""

from typing import TYPE_CHECKING

from muster.aggregation.base import (
    Aggregated,
    Aggregator,
    MeanAggregator,
    StreamingAggregator,
    Update,
    Updates,
    aggregators,
)
from muster.core.modules import imported_when_used

__all__ = [
    "Aggregated",
    "Aggregator",
    "MeanAggregator",
    "StreamingAggregator",
    "Update",
    "Updates",
    "aggregators",
]

if not TYPE_CHECKING:
    __getattr__ = imported_when_used(__name__)
