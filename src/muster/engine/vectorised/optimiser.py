"""PyTorch's optimisers on the rows of several clients, with one learning rate or one for each."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from muster.training.base import LocalTraining


class RowOptimiser:
    """Steps of the clients that are active; what the optimiser remembers is a row per client, like their values.

    Optimisers take one learning rate. Where clients have their own, the optimiser takes a step with rate 1 from
    zero, which gives the direction, and each client moves along it at its own rate. Weight decay, the only part of
    the direction that looks at the values, is added to the gradients before.
    """

    def __init__(
        self,
        training: LocalTraining,
        lr: float | torch.Tensor,
        values: torch.Tensor,
        velocity: torch.Tensor | None = None,
    ) -> None:
        """`lr`: of all clients, or clients × 1. `values`: clients × numbers; they are changed in place.

        `velocity`: of SGD with momentum, clients × numbers; None: zero.
        """
        self._rates = lr if isinstance(lr, torch.Tensor) else None
        self._lr = 1.0 if isinstance(lr, torch.Tensor) else lr
        self._decay = 0.0 if self._rates is None else training.weight_decay
        self._training = training if self._rates is None else replace(training, weight_decay=0.0)
        self._values = values
        self._parameter = self._walker()
        self._optimizer = self._training.make_optimizer([self._parameter], self._lr)
        if velocity is not None:
            self._optimizer.state[self._parameter]["momentum_buffer"] = velocity

    def narrow(self, active: int) -> None:
        """Only the first `active` clients continue."""
        if active == len(self._values):
            return
        kept = self._optimizer.state[self._parameter].items()
        self._values = self._values[:active]
        self._parameter = self._walker()
        self._optimizer = self._training.make_optimizer([self._parameter], self._lr)
        self._optimizer.state[self._parameter] = {
            name: value[:active] if torch.is_tensor(value) and value.dim() else value for name, value in kept
        }

    def _walker(self) -> nn.Parameter:
        """What the optimiser moves: the values themselves, or what starts from zero in every step."""
        return nn.Parameter(self._values if self._rates is None else torch.zeros_like(self._values))

    def step(self, gradients: torch.Tensor) -> None:
        """One step of the active clients; their gradients may be changed."""
        self._parameter.grad = gradients
        if self._rates is None:
            self._optimizer.step()
            return
        if self._decay:
            gradients.add_(self._values, alpha=self._decay)
        self._parameter.zero_()
        self._optimizer.step()
        self._values.addcmul_(self._parameter, self._rates[: len(self._values)])
