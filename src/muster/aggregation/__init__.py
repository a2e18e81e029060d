"""Aggregation methods: how much each answer counts."""

from muster.aggregation.base import (
    Aggregated,
    Aggregator,
    MeanAggregator,
    StreamingAggregator,
    Update,
    Updates,
    aggregators,
)

__all__ = [
    "Aggregated",
    "Aggregator",
    "MeanAggregator",
    "StreamingAggregator",
    "Update",
    "Updates",
    "aggregators",
]
