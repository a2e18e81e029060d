"""Pacing: when a training counts as done, and what becomes of answers that come later (see docs/pacing.md)."""

from muster.pacing.base import Pacing, Wait, pacings
from muster.pacing.synchronous import Synchronous

__all__ = ["Pacing", "Synchronous", "Wait", "pacings"]
