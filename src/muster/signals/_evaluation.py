"""One pass of a client's samples through the global model, for all signals of a request that look at it."""

from __future__ import annotations

import torch

from muster.training.context import ClientContext, Evaluated

#: Samples that run through the model at once in an evaluation: large enough to be fast, small enough for memory.
EVALUATION_BATCH = 512


@torch.no_grad()
def evaluated(client: ClientContext, *, embeds: bool = False) -> Evaluated:
    """The pass: made for the first signal that asks, and kept for the others of the same request.

    Embeddings are kept if any signal of the request needs them, whichever asks first.
    """
    known = client.evaluation
    if known is not None and (known.embeddings is not None or not embeds):
        return known
    module, caught = client.model.module.eval(), list[torch.Tensor]()
    hook = None
    if embeds or client.embeds:
        layer = module.get_submodule(client.spec.final_layer_name)
        hook = layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].flatten(1)))
    total = 0.0
    try:
        for start in range(0, client.size, EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            logits = module(client.features[part])
            total += float(client.objective.total_loss(logits, client.labels[part]))
    finally:
        if hook is not None:
            hook.remove()
    client.evaluation = Evaluated(total / client.size, torch.cat(caught) if caught else None)
    return client.evaluation
