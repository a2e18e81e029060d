"""FedDyn, the client's part: a regulariser that learns from the client's own movements (Acar et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.training.base import LocalAlgorithm, LocalRun, algorithms

#: The client's estimate of its gradient at the last model that it sent.
GRADIENT = "feddyn_gradient"


@algorithms.register("feddyn")
@dataclass(frozen=True)
class FedDyn(LocalAlgorithm):
    """Adds −⟨g_k, w⟩ + (α/2)‖w − w_global‖² to the local loss, where g_k follows the client's movements.

    At the end g_k ← g_k − α(w_k − w_global): with exact local optimisation this is the gradient at w_k, so at a
    common fixed point the gradients cancel and the global model is stationary for the sum of the clients' losses.
    """

    alpha: float = 0.01

    client_state: ClassVar[tuple[str, ...]] = (GRADIENT,)
    requires_aggregation: ClassVar[tuple[str, ...] | None] = ("feddyn",)
    #: Each client's regulariser follows its own movements, the server's sum what it received: they must agree.
    exact_movements: ClassVar[bool] = True

    def check(self, population: Population) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"feddyn: alpha is {self.alpha}", expected="a positive number")

    @property
    def pull(self) -> float:
        return self.alpha

    def begin(self, job: LocalRun) -> None:
        model = job.context.model
        own = job.context.state.get(GRADIENT)
        flat = torch.zeros(job.context.spec.size) if own is None else torch.from_numpy(own)
        job.memory["gradient"] = model.views(flat.to(model.device))

    @torch.no_grad()
    def correct(self, job: LocalRun) -> None:
        for parameter, origin, gradient in zip(job.parameters, job.origin, job.memory["gradient"], strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - origin, alpha=self.alpha).sub_(gradient)

    @torch.no_grad()
    def end(self, job: LocalRun) -> None:
        new = torch.zeros(job.context.spec.size)
        parts = zip(job.context.model.views(new), job.memory["gradient"], job.parameters, job.origin, strict=True)
        for part, gradient, parameter, origin in parts:
            part.copy_(gradient - self.alpha * (parameter - origin))
        # A training that diverged is refused by the server; the client forgets it too.
        if bool(new.isfinite().all()):
            job.context.state[GRADIENT] = new.numpy()
