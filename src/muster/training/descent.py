"""Plain gradient descent without the cost of an optimiser.

A client's training is short: a few steps from the global model. What PyTorch's optimisers do around the arithmetic
of a step, and storing the gradient of a large dense layer only to read it once, is then a noticeable share of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

#: Dense layers with fewer weights than this gain nothing from a step inside the backward pass.
FUSED_WEIGHTS = 2**16


class PlainDescent:
    """w ← w − lr · (gradient + weight_decay · w): what SGD without momentum does, in two calls for all tensors."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        #: As PyTorch's optimisers have it, for local algorithms that look there.
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": lr, "weight_decay": weight_decay}]
        #: By parameter; there is nothing to remember.
        self.state: defaultdict[nn.Parameter, dict[str, Any]] = defaultdict(dict)

    @property
    def lr(self) -> float:
        return float(self.param_groups[0]["lr"])

    @property
    def weight_decay(self) -> float:
        return float(self.param_groups[0]["weight_decay"])

    @torch.no_grad()
    def step(self) -> None:
        parameters: Sequence[nn.Parameter] = self.param_groups[0]["params"]
        pairs = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        if not pairs:
            return
        values: list[torch.Tensor] = [parameter for parameter, _ in pairs]
        gradients = [gradient for _, gradient in pairs]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self.weight_decay))
        torch._foreach_add_(values, gradients, alpha=-self.lr)


class DescendingLinear(nn.Linear):
    """A dense layer that can take its weight's step inside the backward pass.

    The product that would be the gradient is added to the weights at once: one pass over memory instead of three.
    """

    #: Whose steps are taken; None: an ordinary layer, which leaves gradients to an optimiser.
    descent: PlainDescent | None = None

    @classmethod
    def replacing(cls, layer: nn.Linear) -> DescendingLinear:
        """The same layer: it has the other's parameters themselves."""
        made = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.descent is None or not torch.is_grad_enabled():
            return super().forward(features)
        # Reshaped out here: a function's result that is a view must not be changed in place by the next layer.
        rows = features.reshape(-1, self.in_features)
        result: torch.Tensor = _Descending.apply(  # type: ignore[no-untyped-call]
            rows, self.weight, self.bias, self.descent
        )
        return result if features.dim() == 2 else result.view(*features.shape[:-1], self.out_features)


class _Descending(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, descent: PlainDescent
    ) -> torch.Tensor:
        ctx.save_for_backward(features, weight)
        ctx.descent = descent
        return nn.functional.linear(features, weight, bias)

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, torch.Tensor | None, None]:
        (outer,), (features, weight), descent = gradients, ctx.saved_tensors, ctx.descent
        # Before the weights take their step.
        inner = outer @ weight if ctx.needs_input_grad[0] else None
        kept = 1.0 - descent.lr * descent.weight_decay
        weight.detach().addmm_(outer.t(), features, beta=kept, alpha=-descent.lr)
        return inner, None, outer.sum(dim=0) if ctx.needs_input_grad[2] else None, None


def allow_fused_steps(module: nn.Module) -> None:
    """Let the large dense layers of a chain of layers take their steps in the backward pass.

    Only in an `nn.Sequential` of distinct layers: there every weight is used once in a forward pass, and
    nothing that follows in the backward pass needs it as it was.
    """
    # Exactly this class: one that is derived from it may use its layers in another way.
    if type(module) is not nn.Sequential or any(map(_is_watched, module.modules())):
        return
    places = list(_places(module))
    layers = [getattr(parent, name) for parent, name in places]
    parameters = [id(parameter) for layer in layers for parameter in layer.parameters()]
    if len(set(parameters)) < len(parameters):
        return
    for (parent, name), layer in zip(places, layers, strict=True):
        large = type(layer) is nn.Linear and layer.weight.numel() >= FUSED_WEIGHTS
        if large and layer.weight.requires_grad:
            setattr(parent, name, DescendingLinear.replacing(layer))


def _places(module: nn.Sequential) -> Iterator[tuple[nn.Module, str]]:
    """Where the layers of nested chains are; a layer that is there twice has two places."""
    for name, child in module._modules.items():
        if type(child) is nn.Sequential:
            yield from _places(child)
        elif child is not None:
            yield module, name


def _is_watched(layer: nn.Module) -> bool:
    """Whether it has hooks, which may look at gradients or weights."""
    return any(table for attribute, table in vars(layer).items() if attribute.endswith("_hooks"))


@contextmanager
def fused_steps(module: nn.Module, descent: PlainDescent) -> Iterator[None]:
    """While it lasts, layers that can take their steps themselves do so, and have no gradients."""
    layers = [layer for layer in module.modules() if isinstance(layer, DescendingLinear)]
    for layer in layers:
        layer.descent = descent
    try:
        yield
    finally:
        for layer in layers:
            layer.descent = None
