"""Numbers as targets: squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.training.objectives.base import Objective, objectives, shape_of


@objectives.register("regression")
@dataclass(frozen=True)
class Regression(Objective):
    """Numbers as targets: squared error, mean over the numbers of a sample; MAE, RMSE, R².

    `r2` is the share of the targets' variance that the model explains, with several numbers per sample the share
    of their variances' sum; it is not defined where the targets are all equal.
    """

    task: ClassVar[str] = "regression"
    usual_metrics: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2")
    score: ClassVar[str] = "mae"
    errors: ClassVar[tuple[str, ...]] = ("mae", "rmse")

    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (_flat(outputs) - _flat(targets)).square().mean(dim=1)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A column against a vector would be broadcast to all pairs.
        return super().losses(*aligned(outputs, targets))

    def rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().rows(*aligned(outputs, targets))

    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        true = _flat(targets).double()
        errors = _flat(outputs).double() - true
        parts = [errors.abs().mean(dim=1, keepdim=True), errors.square().mean(dim=1, keepdim=True)]
        return torch.cat([*parts, true.square().mean(dim=1, keepdim=True), true], dim=1)

    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        absolute, squared = totals[..., 0] / count, totals[..., 1] / count
        means = totals[..., 3:] / count[..., None]
        variance = totals[..., 2] / count - np.square(means).mean(axis=-1)
        # Rounding leaves a little where there is nothing.
        known = variance > 1e-12 * (totals[..., 2] / count)
        return {
            "mae": absolute,
            "rmse": np.sqrt(squared),
            "r2": np.where(known, 1 - squared / np.where(known, variance, 1.0), np.nan),
        }

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        if outputs.shape[1:].numel() == targets.shape[1:].numel():
            return ""
        return f"the model gives {shape_of(outputs)} for a sample, whose target is {shape_of(targets)}"


def aligned(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in the shape of the outputs and in their precision."""
    if outputs.numel() == targets.numel():
        targets = targets.view(outputs.shape)
    return outputs, targets.to(outputs.dtype)


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(len(values), -1)
