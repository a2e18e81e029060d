"""Normalisation layers for many clients at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch

from muster.core.parameters import SpecEntry
from muster.engine.vectorised.layers import Batch, Layer
from muster.engine.vectorised.stack import Stack, Step, Tensors
from muster.training.base import single_sample_error


class NormLayer(Layer):
    """Scale and shift of normalised inputs, with a scale and shift for each client."""

    gives_away = True

    def __init__(self, weight: SpecEntry | None, bias: SpecEntry | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def entries(self) -> tuple[SpecEntry, ...]:
        return tuple(entry for entry in (self._weight, self._bias) if entry is not None)

    def bind(self, stack: Stack) -> None:
        self._w = None if self._weight is None else Tensors.of(stack, self._weight)
        self._b = None if self._bias is None else Tensors.of(stack, self._bias)

    @abstractmethod
    def normalise(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The normalised input, a new tensor."""

    @abstractmethod
    def inward(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the input, given that of the normalised one."""

    @abstractmethod
    def fitted(self, parameter: torch.Tensor, axes: int) -> torch.Tensor:
        """clients × parameter shape, made to broadcast against inputs with this many axes."""

    @abstractmethod
    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a scale or shift: summed over what shares it."""

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._normal = self.normalise(x, batch)
        y = self._normal if self._w is None else self._normal * self.fitted(self._w.values, x.dim())
        return y.clone() if self._b is None else y + self.fitted(self._b.values, x.dim())

    def backward(self, gradient: torch.Tensor, step: Step, inward: bool) -> torch.Tensor | None:
        scaled = gradient
        if self._w is not None:
            scaled = gradient * self.fitted(self._w.values, gradient.dim())
            if self._w.trained:
                step.whole(self._w, self.summed(gradient * self._normal))
        if self._b is not None and self._b.trained:
            step.whole(self._b, self.summed(gradient))
        return self.inward(scaled) if inward else None


class LayerNorm(NormLayer):
    """Normalises the last axes of each sample."""

    def __init__(
        self, weight: SpecEntry | None, bias: SpecEntry | None, shape: tuple[int, ...], eps: float
    ) -> None:
        super().__init__(weight, bias)
        self._shape, self._eps = list(shape), eps

    def normalise(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._x = x.contiguous()
        y, self._mean, self._rstd = torch.native_layer_norm(self._x, self._shape, None, None, self._eps)
        return y

    def inward(self, gradient: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), self._x, self._shape, self._mean, self._rstd, None, None, [True, False, False]
        )[0]
        return inner

    def fitted(self, parameter: torch.Tensor, axes: int) -> torch.Tensor:
        shape = parameter.shape[1:]
        return parameter.view(len(parameter), *([1] * (axes - 1 - len(shape))), *shape)

    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.reshape(len(gradient), -1, *self._shape).sum(dim=1)


class _Channelwise(NormLayer):
    """With one scale and shift for each channel: the third axis."""

    def fitted(self, parameter: torch.Tensor, axes: int) -> torch.Tensor:
        return parameter.view(len(parameter), 1, -1, *([1] * (axes - 3)))

    def summed(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.sum(dim=[1, *range(3, gradient.dim())])


class GroupNorm(_Channelwise):
    """Normalises groups of channels of each sample."""

    def __init__(self, weight: SpecEntry | None, bias: SpecEntry | None, groups: int, eps: float) -> None:
        super().__init__(weight, bias)
        self._groups, self._eps = groups, eps

    def normalise(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._shape = x.shape
        self._x = x.reshape(-1, *x.shape[2:])
        samples, channels = self._x.shape[:2]
        self._sizes = (samples, channels, math.prod(self._x.shape[2:]), self._groups)
        y, self._mean, self._rstd = torch.native_group_norm(self._x, None, None, *self._sizes, self._eps)
        return y.view(self._shape)

    def inward(self, gradient: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = torch.ops.aten.native_group_norm_backward(
            gradient.reshape(self._x.shape),
            self._x,
            self._mean,
            self._rstd,
            None,
            *self._sizes,
            [True, False, False],
        )[0]
        return inner.view(self._shape)


class BatchNorm(_Channelwise):
    """Normalises each channel over the client's mini-batch and follows its running statistics."""

    def __init__(
        self,
        weight: SpecEntry | None,
        bias: SpecEntry | None,
        running: Sequence[SpecEntry],
        eps: float,
        momentum: float,
    ) -> None:
        super().__init__(weight, bias)
        self._running, self._eps, self._momentum = running, eps, momentum

    def bind(self, stack: Stack) -> None:
        super().bind(stack)
        self._means, self._variances, self._counts = (stack.buffer_of(entry) for entry in self._running)

    def normalise(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        self._axes = [1, *range(3, x.dim())]
        per_sample = math.prod(x.shape[3:])
        count = torch.tensor(batch.sizes, dtype=torch.float32).mul_(per_sample)
        if bool((count < 2).any()):
            raise single_sample_error()
        self._count = count.view(-1, *([1] * (x.dim() - 1)))
        self._mask = None if batch.mask is None else batch.mask.view(*batch.mask.shape, *([1] * (x.dim() - 2)))
        mean = self._over_batch(x)
        centred = x - mean
        variance = self._over_batch(centred.square())
        self._rstd = (variance + self._eps).rsqrt()
        self._follow(mean, variance * (self._count / (self._count - 1)))
        self._normal = centred * self._rstd
        return self._normal

    def inward(self, gradient: torch.Tensor) -> torch.Tensor:
        # Gradients of padding are zero already, but the means' share must not leak into it.
        shared = self._over_batch(gradient) + self._normal * self._over_batch(gradient * self._normal)
        inner = (gradient - shared) * self._rstd
        return inner if self._mask is None else inner * self._mask

    def _over_batch(self, values: torch.Tensor) -> torch.Tensor:
        kept = values if self._mask is None else values * self._mask
        return kept.sum(dim=self._axes, keepdim=True) / self._count

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self._means.lerp_(mean.reshape(self._means.shape), self._momentum)
        self._variances.lerp_(variance.reshape(self._variances.shape), self._momentum)
        self._counts.add_(1)
