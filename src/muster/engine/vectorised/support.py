"""Whether the clients of a federation can be trained side by side, and if not, why."""

from __future__ import annotations

from torch import nn

from muster.engine.vectorised.algorithms import SUPPORTED
from muster.engine.vectorised.chain import Unsupported, chain_of
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.objectives import Classification, Objective


def why_not(
    module: nn.Module,
    algorithm: LocalAlgorithm,
    device: str,
    training: LocalTraining | None = None,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
) -> str | None:
    """Why the vectorised engine cannot run this; None when it can."""
    if device != "cpu":
        return f"it computes on the CPU, and the device is {device}"
    if type(algorithm) not in SUPPORTED:
        return f"the local algorithm {type(algorithm).__name__} works on individual clients"
    if not objective.usual:
        what = "its own loss" if objective.loss is not None else f"the objective {type(objective).__name__}"
        return f"it trains with cross-entropy of class labels, and the experiment has {what}"
    if training is not None and training.schedule_per == "batch":
        return "training.schedule_per = 'batch' changes the learning rate within a training"
    try:
        chain_of(module)
    except Unsupported as reason:
        return f"the model does not fit: {reason}"
    return None
