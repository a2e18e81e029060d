"""Classes at many places of a sample: pixels of a picture, positions of a text."""

from __future__ import annotations

import torch
from torch import nn


def place_losses(outputs: torch.Tensor, targets: torch.Tensor, ignored: int) -> torch.Tensor:
    """Cross-entropy, mean over the places of each sample that count; 0 for a sample without any.

    `outputs`: samples × classes × places, `targets`: samples × places.
    """
    each = nn.functional.cross_entropy(outputs, targets, reduction="none", ignore_index=ignored)
    counted = (targets != ignored).flatten(1)
    return each.flatten(1).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
