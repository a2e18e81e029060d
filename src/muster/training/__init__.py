"""Local training on clients."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.training.base import Job, LocalAlgorithm, LocalTraining, algorithms

__all__ = ["Job", "LocalAlgorithm", "LocalTraining", "algorithms"]

if not TYPE_CHECKING:
    __getattr__ = imported_when_used(__name__)
