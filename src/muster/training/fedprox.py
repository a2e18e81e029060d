"""FedProx: a proximal term keeps local training near the global model (Li et al., 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.training.base import LocalAlgorithm, LocalRun, algorithms


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(LocalAlgorithm):
    """Adds (μ/2)‖w − w_global‖² to the local loss."""

    mu: float = 0.1

    honours_pull_factors: ClassVar[bool] = True

    def check(self, population: Population) -> None:
        if not 0 <= self.mu < math.inf:
            raise ConfigError(f"fedprox: mu is {self.mu}", expected="zero or a positive number")

    def cautions(self, population: Population) -> list[str]:
        return ["fedprox is plain training here: mu is 0"] if self.mu == 0 else []

    @property
    def pull(self) -> float:
        return self.mu

    @torch.no_grad()
    def correct(self, job: LocalRun) -> None:
        # The term's gradient, added directly: cheaper than building it into the loss.
        for parameter, origin in zip(job.parameters, job.origin, strict=True):
            if parameter.grad is not None:
                # The difference first: it is exactly zero before the first step.
                parameter.grad.add_(parameter - origin, alpha=self.mu * job.pull_factor)
