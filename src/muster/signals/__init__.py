"""Measurements that a client makes: what leaves it, and what that costs."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.signals.base import Signal, signals
from muster.training.context import ClientContext, TrainOutcome

__all__ = ["ClientContext", "Signal", "TrainOutcome", "signals"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__, classes=True)
