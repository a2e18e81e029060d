"""Availability: which clients can be reached in a round."""

from muster.world.availability.base import Availability, availabilities

__all__ = ["Availability", "availabilities"]
