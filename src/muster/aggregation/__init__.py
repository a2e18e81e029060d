"""Aggregation methods: how much each answer counts."""

from muster.aggregation.base import Aggregated, Aggregator, Update, Updates, aggregators

__all__ = ["Aggregated", "Aggregator", "Update", "Updates", "aggregators"]
