"""Any number of labels per sample: binary cross-entropy of each label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats
from muster.training.objectives.base import Objective, objectives, shape_of


@objectives.register("multi-label")
@dataclass(frozen=True)
class MultiLabel(Objective):
    """Any number of labels per sample: binary cross-entropy, mean over labels; accuracy, exact match, F1.

    A label counts as predicted where its output is positive (a probability above one half). `accuracy` is the
    share of labels that are right, `exact_match` that of samples whose labels all are; `f1_micro` is the F1 of all
    labels together, `f1` the mean of the labels' own, over those that occur.
    """

    task: ClassVar[str] = "multi-label"
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "exact_match", "f1", "f1_micro")

    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = nn.functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs), reduction="none")
        return each.mean(dim=1)

    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        predicted, true = outputs > 0, targets > 0.5
        right = predicted == true
        parts = [right.double().mean(dim=1, keepdim=True), right.all(dim=1, keepdim=True).double()]
        # Per label: hits, predictions, occurrences.
        return torch.cat([*parts, (predicted & true).double(), predicted.double(), true.double()], dim=1)

    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        hits, predicted, true = np.split(totals[..., 2:], 3, axis=-1)
        each = np.where(predicted + true > 0, 2 * hits / (predicted + true), 0.0)
        occurs = true > 0
        return {
            "accuracy": totals[..., 0] / count,
            "exact_match": totals[..., 1] / count,
            "f1": np.sum(each * occurs, axis=-1) / occurs.sum(axis=-1),
            "f1_micro": 2 * hits.sum(axis=-1) / (predicted + true).sum(axis=-1),
        }

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        if outputs.shape == targets.shape:
            return ""
        return f"the model gives {shape_of(outputs)} for a sample, which has {shape_of(targets)} labels"
