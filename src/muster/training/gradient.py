"""The gradient of a client's whole local loss, for algorithms that need it in addition to their steps."""

from __future__ import annotations

import torch

from muster.core.parameters import FlatModel
from muster.training.base import forward
from muster.training.objectives import Classification, Objective


def local_gradient(
    model: FlatModel,
    features: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
) -> torch.Tensor:
    """Of the mean loss over all samples, where the model is now: a flat vector, zero for what is not trained.

    One pass in batches like those of the training and in its mode, like the steps that it is compared
    with: batch normalisation uses each batch's statistics, dropout drops. Running statistics and the random
    generator are afterwards as they were before.
    """
    module, device = model.train(), model.device
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    statistics = [buffer.clone() for buffer in module.buffers()]
    result = torch.zeros(model.spec.size, device=device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        for start in range(0, len(labels), batch_size):
            rows = slice(start, start + batch_size)
            loss = objective.total_loss(forward(module, features[rows]), labels[rows]) / len(labels)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for part, gradient in zip(model.views(result), gradients, strict=True):
                if gradient is not None:
                    part.add_(gradient)
    with torch.no_grad():
        for buffer, before in zip(module.buffers(), statistics, strict=True):
            buffer.copy_(before)
    return result.cpu()
