"""Availability: which clients can be reached, by rounds or by time (see docs/availability.md)."""

from muster.world.availability.base import Availability, TimedAvailability, Watch, availabilities

__all__ = ["Availability", "TimedAvailability", "Watch", "availabilities"]
