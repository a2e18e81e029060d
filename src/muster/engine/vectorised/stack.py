"""The parameters of several clients side by side: one row per client, one column per number of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from muster.core.arrays import Floats
from muster.core.parameters import ParameterSpec, SpecEntry


@dataclass(frozen=True)
class StackLayout:
    """Which tensors of the model are trained. Their columns are neighbours in a stack; the rest is shared."""

    spec: ParameterSpec
    trained_names: frozenset[str]
    #: Tensors that the layers use without training them, by name: they are the same for all clients.
    frozen: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def trained(self) -> dict[str, slice]:
        """Columns of the trained tensors in a stack, by name."""
        columns, at = {}, 0
        for entry in self.spec.parameters:
            if entry.name in self.trained_names:
                columns[entry.name] = slice(at, at + entry.stop - entry.start)
                at = columns[entry.name].stop
        return columns

    @cached_property
    def width(self) -> int:
        return max((columns.stop for columns in self.trained.values()), default=0)

    @cached_property
    def is_whole(self) -> bool:
        """The flat vector holds trained tensors and nothing else, so that rows need no rearrangement."""
        return self.width == self.spec.size

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """The trained part of flat vectors (last axis), as columns of a stack."""
        if self.is_whole:
            return flat
        parts = [flat[..., entry.slice] for entry in self.spec.parameters if entry.name in self.trained]
        return torch.cat(parts, dim=-1)

    def scatter(self, columns: torch.Tensor, flat: torch.Tensor) -> None:
        """Write columns of a stack to their places in flat vectors."""
        for entry in self.spec.parameters:
            if entry.name in self.trained:
                flat[..., entry.slice] = columns[..., self.trained[entry.name]]


@dataclass
class Stack:
    """What the clients of a slice are working on."""

    layout: StackLayout
    #: clients × trained numbers.
    values: torch.Tensor
    #: The same shape; None when steps are taken without storing gradients.
    gradients: torch.Tensor | None
    #: clients × model size, only buffers and counters of it are in use; None when the model has none.
    buffers: torch.Tensor | None
    #: The global parameters.
    origin: torch.Tensor
    #: How many of the first rows are still training.
    active: int = field(default=0)

    def values_of(self, entry: SpecEntry) -> torch.Tensor:
        """active clients × the tensor's shape; a view, to be written to where the tensor is trained."""
        columns = self.layout.trained.get(entry.name)
        if columns is None:
            return self.layout.frozen[entry.name].view(1, *entry.shape).expand(self.active, *entry.shape)
        return self.values[: self.active, columns].view(self.active, *entry.shape)

    def gradient_of(self, entry: SpecEntry) -> torch.Tensor | None:
        """Where the tensor's gradients go; None where they are not stored."""
        columns = self.layout.trained.get(entry.name)
        if self.gradients is None or columns is None:
            return None
        return self.gradients[: self.active, columns].view(self.active, *entry.shape)

    def buffer_of(self, entry: SpecEntry) -> torch.Tensor:
        assert self.buffers is not None
        return self.buffers[: self.active, entry.slice].view(self.active, *entry.shape)


@dataclass
class Tensors:
    """One tensor of the model for all active clients."""

    values: torch.Tensor
    gradient: torch.Tensor | None
    trained: bool

    @classmethod
    def of(cls, stack: Stack, entry: SpecEntry) -> Tensors:
        return cls(stack.values_of(entry), stack.gradient_of(entry), entry.name in stack.layout.trained)


class Step(ABC):
    """What happens to the gradient of a tensor as soon as it is known."""

    @abstractmethod
    def product(self, tensors: Tensors, left: torch.Tensor, right: torch.Tensor) -> None:
        """The gradient is the product of two batches of matrices."""

    @abstractmethod
    def whole(self, tensors: Tensors, gradient: torch.Tensor) -> None:
        """The gradient is given."""

    @abstractmethod
    def entries(self, tensors: Tensors, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """The gradient is zero except in some rows of each client's matrix, which may be named several times.

        `rows` is clients × count, `gradient` is clients × count × width.
        """


class KeepGradients(Step):
    """Keeps gradients for an optimiser."""

    def product(self, tensors: Tensors, left: torch.Tensor, right: torch.Tensor) -> None:
        torch.bmm(left, right, out=tensors.gradient)

    def whole(self, tensors: Tensors, gradient: torch.Tensor) -> None:
        assert tensors.gradient is not None
        tensors.gradient.copy_(gradient)

    def entries(self, tensors: Tensors, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        assert tensors.gradient is not None
        tensors.gradient.zero_()
        tensors.gradient.index_put_((_numbers(rows), rows), gradient, accumulate=True)


@dataclass
class Descend(Step):
    """Plain gradient descent at once: the product of a layer's backward pass is added to its weights."""

    lr: float
    weight_decay: float

    @property
    def kept(self) -> float:
        return 1.0 - self.lr * self.weight_decay

    def product(self, tensors: Tensors, left: torch.Tensor, right: torch.Tensor) -> None:
        tensors.values.baddbmm_(left, right, beta=self.kept, alpha=-self.lr)

    def whole(self, tensors: Tensors, gradient: torch.Tensor) -> None:
        self._decay(tensors)
        tensors.values.sub_(gradient, alpha=self.lr)

    def entries(self, tensors: Tensors, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        self._decay(tensors)
        tensors.values.index_put_((_numbers(rows), rows), gradient * -self.lr, accumulate=True)

    def _decay(self, tensors: Tensors) -> None:
        if self.weight_decay:
            tensors.values.mul_(self.kept)


@dataclass
class DescendEach(Step):
    """Plain gradient descent at once, with a learning rate for each client."""

    #: clients × 1.
    lr: torch.Tensor
    weight_decay: float

    def product(self, tensors: Tensors, left: torch.Tensor, right: torch.Tensor) -> None:
        self._decay(tensors)
        # The left factor has a row for each output and a column for each sample: far smaller than the weights.
        tensors.values.baddbmm_(left * -_along(self.lr, left), right)

    def whole(self, tensors: Tensors, gradient: torch.Tensor) -> None:
        self._decay(tensors)
        tensors.values.addcmul_(gradient, _along(self.lr, gradient), value=-1.0)

    def entries(self, tensors: Tensors, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        self._decay(tensors)
        steps = gradient * -_along(self.lr, gradient)
        tensors.values.index_put_((_numbers(rows), rows), steps, accumulate=True)

    def _decay(self, tensors: Tensors) -> None:
        if self.weight_decay:
            tensors.values.mul_(1.0 - self.weight_decay * _along(self.lr, tensors.values))


def descent(lr: float | torch.Tensor, weight_decay: float) -> Step:
    """Plain gradient descent with a learning rate for all clients, or for each (clients × 1)."""
    return DescendEach(lr, weight_decay) if isinstance(lr, torch.Tensor) else Descend(lr, weight_decay)


def one_or_each(numbers: Floats) -> float | torch.Tensor:
    """One number for all clients where they share it, which is computed faster; else clients × 1."""
    if (numbers == numbers[0]).all():
        return float(numbers[0])
    return torch.from_numpy(numbers).float().unsqueeze(1)


def _along(numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The numbers of the clients (clients × 1) that have rows, shaped to be multiplied with these."""
    return numbers[: len(rows)].view(-1, *[1] * (rows.dim() - 1))


def _numbers(rows: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(rows)).unsqueeze(1)
