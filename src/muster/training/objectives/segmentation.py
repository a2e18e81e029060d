"""A class for every pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.training.objectives._places import place_losses
from muster.training.objectives.base import Objective, objectives, shape_of


@objectives.register("segmentation")
@dataclass(frozen=True)
class Segmentation(Objective):
    """A class for every pixel: cross-entropy, mean over a picture's pixels; pixel accuracy, mean IoU.

    The model gives classes × height × width for a picture, whose target is height × width. `mean_iou` is the mean
    over the classes that occur in targets or predictions.
    """

    task: ClassVar[str] = "segmentation"
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "mean_iou")

    #: The target of pixels that do not count.
    ignored: int = 255

    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return place_losses(outputs, targets, self.ignored)

    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        classes = outputs.shape[1]
        counted = (targets != self.ignored).flatten(1)
        # Pixels that do not count are of no class.
        true = torch.where(counted, targets.flatten(1), classes)
        predicted = torch.where(counted, outputs.argmax(dim=1).flatten(1), classes)
        hits = torch.where(true == predicted, true, classes)
        return torch.cat([_histograms(pixels, classes) for pixels in (hits, predicted, true)], dim=1)

    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        hits, predicted, true = np.split(totals, 3, axis=-1)
        union = predicted + true - hits
        occurs = union > 0
        each = np.where(occurs, hits / np.where(occurs, union, 1.0), 0.0)
        return {
            "accuracy": hits.sum(axis=-1) / true.sum(axis=-1),
            "mean_iou": each.sum(axis=-1) / occurs.sum(axis=-1),
        }

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        if outputs.shape == (len(targets), classes, *targets.shape[1:]):
            return ""
        return (
            f"the model gives {shape_of(outputs)} for a picture, and not {classes} classes × {shape_of(targets)}, "
            "the size of its target"
        )


def _histograms(pixels: torch.Tensor, classes: int) -> torch.Tensor:
    """samples × classes: how many places have each class; those of no class (`classes`) are left out."""
    counts = torch.zeros(len(pixels), classes + 1, dtype=torch.float64, device=pixels.device)
    counts.scatter_add_(1, pixels, torch.ones_like(pixels, dtype=torch.float64))
    return counts[:, :classes]
