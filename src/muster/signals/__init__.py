"""Measurements that a client makes: what leaves it, and what that costs."""

from muster.signals.base import ClientContext, Signal, TrainOutcome, signals

__all__ = ["ClientContext", "Signal", "TrainOutcome", "signals"]
