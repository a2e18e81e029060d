"""Layers for many clients at once: the first axis of every tensor is the client, the second the sample.

A layer's `forward` keeps what its `backward` needs; `backward` hands the gradients of its parameters to a `Step`
and returns that of its input. Padded samples have gradients of zero, so only layers that mix samples or draw
random numbers have to know which those are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from muster.core.parameters import SpecEntry
from muster.engine.vectorised.stack import Stack, Step, Tensors


@dataclass(frozen=True)
class Batch:
    """One mini-batch of every active client."""

    #: Samples of each client in it.
    sizes: Sequence[int]
    #: clients × samples: 1 for a sample, 0 for padding; None without padding.
    mask: torch.Tensor | None
    #: One for each client, for layers that draw.
    generators: Sequence[torch.Generator] = ()


class Layer(ABC):
    """Part of a chain."""

    #: The output is a new tensor that the layer does not need for its backward pass.
    gives_away: bool = False

    @property
    def entries(self) -> tuple[SpecEntry, ...]:
        """The parameters of the layer."""
        return ()

    def bind(self, stack: Stack) -> None:
        """Look at the rows of the clients that are active from now on."""
        return

    @abstractmethod
    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The outputs."""

    @abstractmethod
    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        """The gradient of the input; None unless `inward`."""


class Linear(Layer):
    """x Wᵀ + b, with a W and b for each client."""

    gives_away = True

    def __init__(self, weight: SpecEntry, bias: SpecEntry | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def entries(self) -> tuple[SpecEntry, ...]:
        return (self._weight,) if self._bias is None else (self._weight, self._bias)

    def bind(self, stack: Stack) -> None:
        self._w = Tensors.of(stack, self._weight)
        self._b = None if self._bias is None else Tensors.of(stack, self._bias)
        self._transposed = self._w.values.transpose(1, 2)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        shape = x.shape
        self._x = x if x.dim() == 3 else x.reshape(shape[0], -1, shape[-1])
        if self._b is None:
            y = torch.bmm(self._x, self._transposed)
        else:
            y = torch.baddbmm(self._b.values.unsqueeze(1), self._x, self._transposed)
        return y if x.dim() == 3 else y.view(*shape[:-1], -1)

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        shape = gradient.shape
        flat = gradient if gradient.dim() == 3 else gradient.reshape(shape[0], -1, shape[-1])
        # Before the weights take their step.
        inner = torch.bmm(flat, self._w.values) if inward else None
        if self._w.trained:
            step.product(self._w, flat.transpose(1, 2), self._x)
        if self._b is not None and self._b.trained:
            step.whole(self._b, flat.sum(dim=1))
        return inner if inner is None or gradient.dim() == 3 else inner.view(*shape[:-1], -1)


class Embedding(Layer):
    """A row of the client's table for each token."""

    gives_away = True

    def __init__(self, weight: SpecEntry, padding: int | None) -> None:
        self._weight, self._padding = weight, padding

    @property
    def entries(self) -> tuple[SpecEntry, ...]:
        return (self._weight,)

    def bind(self, stack: Stack) -> None:
        self._table = Tensors.of(stack, self._weight)
        self._numbers = torch.arange(stack.active).unsqueeze(1)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._tokens = x.reshape(len(x), -1)
        return self._table.values[self._numbers, self._tokens].view(*x.shape, -1)

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        if self._table.trained:
            flat = gradient.reshape(*self._tokens.shape, -1)
            if self._padding is not None:
                flat = flat * (self._tokens != self._padding).unsqueeze(2)
            step.entries(self._table, self._tokens, flat)
        return None


class EmbeddingBag(Embedding):
    """The sum or mean of the rows of each sample's tokens, without those that are padding."""

    def __init__(self, weight: SpecEntry, padding: int | None, mean: bool) -> None:
        super().__init__(weight, padding)
        self._mean = mean

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        rows = super().forward(x, batch)
        share = torch.ones(x.shape) if self._padding is None else (x != self._padding).float()
        if self._mean:
            share /= share.sum(dim=2, keepdim=True).clamp_min(1.0)
        self._share = share.unsqueeze(3)
        return (rows * self._share).sum(dim=2)

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        return super().backward(gradient.unsqueeze(2) * self._share, step, inward)


class Relu(Layer):
    """max(x, 0)."""

    def __init__(self, in_place: bool) -> None:
        self._in_place = in_place

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._y = x.relu_() if self._in_place else x.relu()
        return self._y

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        if not inward:
            return None
        inner: torch.Tensor = torch.ops.aten.threshold_backward(gradient, self._y, 0)
        return inner


class Pointwise(Layer):
    """Any function of single numbers, differentiated by PyTorch."""

    def __init__(self, function: nn.Module) -> None:
        self._function = function

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._x = x.detach().requires_grad_()
        with torch.enable_grad():
            self._y: torch.Tensor = self._function(self._x)
        value: torch.Tensor = self._y.detach()
        return value

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        return torch.autograd.grad(self._y, self._x, gradient)[0] if inward else None


class Flatten(Layer):
    """Merges the axes of a sample from the first one named to the last one named."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first + 1, last + 1 if last >= 0 else last

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._shape = x.shape
        return x.flatten(self._first, self._last)

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        return gradient.reshape(self._shape) if inward else None


class Dropout(Layer):
    """Zeroes numbers at random: each client draws from its own generator, as it would alone."""

    gives_away = True

    def __init__(self, p: float) -> None:
        self._p = p

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._kept = torch.zeros_like(x)
        for client, size in enumerate(batch.sizes):
            self._kept[client, :size].bernoulli_(1 - self._p, generator=batch.generators[client])
        if self._p < 1:
            self._kept.div_(1 - self._p)
        return x * self._kept

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        return gradient * self._kept if inward else None
