"""The next token at every position of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.training.objectives._places import place_losses
from muster.training.objectives.base import Objective, objectives, shape_of


@objectives.register("next-token")
@dataclass(frozen=True)
class NextToken(Objective):
    """The next token at every position: cross-entropy, mean over a text's positions; accuracy, perplexity.

    The model gives positions × tokens of the vocabulary for a text, whose target is a token a position. `accuracy`
    and `perplexity` are of all positions together, however they are divided over texts.
    """

    task: ClassVar[str] = "next-token"
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "perplexity")
    errors: ClassVar[tuple[str, ...]] = ("perplexity",)

    #: The target of positions that do not count.
    ignored: int = -100

    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return place_losses(outputs.transpose(1, 2), targets, self.ignored)

    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        counted = targets != self.ignored
        positions = counted.sum(dim=1, keepdim=True).double()
        right = ((outputs.argmax(dim=2) == targets) & counted).sum(dim=1, keepdim=True).double()
        losses = self.usual_losses(outputs, targets).double().unsqueeze(1) * positions
        return torch.cat([positions, right, losses], dim=1)

    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        positions, right, losses = np.moveaxis(totals, -1, 0)
        with np.errstate(over="ignore"):
            return {"accuracy": right / positions, "perplexity": np.exp(losses / positions)}

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        if outputs.shape == (*targets.shape, classes):
            return ""
        return (
            f"the model gives {shape_of(outputs)} for a text, and not {shape_of(targets)} positions × "
            f"{classes} tokens"
        )
