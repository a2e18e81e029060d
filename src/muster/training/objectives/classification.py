"""One class per sample: cross-entropy, and metrics of predicted classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from muster.core.arrays import Floats
from muster.training.objectives.base import Objective, objectives, shape_of


@objectives.register("classification")
@dataclass(frozen=True)
class Classification(Objective):
    """One class per sample: cross-entropy; accuracy, precision, recall, F1."""

    task: ClassVar[str] = "classification"
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "precision", "recall", "f1")

    @property
    def usual(self) -> bool:
        return type(self) is Classification and self.loss is None

    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def mean_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # The library's own mean and sum: other bits than those of the mean of the losses.
        return nn.functional.cross_entropy(outputs, targets) if self.usual else super().mean_loss(outputs, targets)

    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.usual:
            return nn.functional.cross_entropy(outputs, targets, reduction="sum")
        return super().total_loss(outputs, targets)

    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Nothing: the table of true and predicted classes says it all."""
        return outputs.new_empty(len(targets), 0)

    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        return {}

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        if outputs.dim() == 2 and outputs.shape[1] == classes:
            return ""
        return (
            f"the model gives {shape_of(outputs)} for a sample, and not one number for each of {classes} classes"
        )
