"""Local training on clients."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.training.base import LocalAlgorithm, LocalRun, LocalTraining, algorithms

__all__ = ["LocalAlgorithm", "LocalRun", "LocalTraining", "algorithms"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__, classes=True)
