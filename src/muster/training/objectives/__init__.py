"""What clients learn: the loss that they minimise and the metrics by which the model is judged."""

from typing import TYPE_CHECKING

from muster.core.modules import imported_when_used
from muster.training.objectives.base import Objective, objectives
from muster.training.objectives.classification import Classification

__all__ = ["Classification", "Objective", "objectives"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = imported_when_used(__name__, classes=True)
