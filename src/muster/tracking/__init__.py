"""Trackers that people already use, fed with a run's numbers. Off unless asked for; they never break a run."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.tracking.base import RunFacts, Tracker, trackers
from muster.tracking.observer import Tracking, TrackingOptions, tracking

__all__ = ["RunFacts", "Tracker", "Tracking", "TrackingOptions", "trackers", "tracking"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__)
