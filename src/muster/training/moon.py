"""MOON: model-contrastive local training (Li et al., 2021)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Vector
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.training.base import LocalAlgorithm, LocalRun, algorithms

#: The model that the client sent the last time it trained.
PREVIOUS = "moon_previous"


def contrastive_loss(
    own: torch.Tensor, of_global: torch.Tensor, of_previous: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Mean over the batch of −log of the share that the global representation has against the previous one."""
    positive = nn.functional.cosine_similarity(own, of_global, dim=1)
    negative = nn.functional.cosine_similarity(own, of_previous, dim=1)
    # −log(e^p / (e^p + e^n)) = softplus(n − p), which cannot overflow.
    return nn.functional.softplus((negative - positive) / temperature).mean()


@algorithms.register("moon")
@dataclass(frozen=True)
class Moon(LocalAlgorithm):
    """Pulls representations towards the global model's and away from the client's previous model's.

    A representation is what the classification layer receives. A client that trains for the first time has no
    previous model, and trains without the term.
    """

    #: Strength of the contrastive term.
    mu: float = 1.0
    temperature: float = 0.5

    client_state: ClassVar[tuple[str, ...]] = (PREVIOUS,)

    def check(self, population: Population) -> None:
        if not self.mu >= 0:
            raise ConfigError(f"moon: mu is {self.mu}", expected="zero or a positive number")
        if not self.temperature > 0:
            raise ConfigError(f"moon: temperature is {self.temperature}", expected="a positive number")
        # Raises where the model has no classification layer to take representations from.
        _ = population.spec.final_weight

    def cautions(self, population: Population) -> list[str]:
        return ["moon is plain training here: mu is 0"] if self.mu == 0 else []

    def begin(self, job: LocalRun) -> None:
        previous = job.context.state.get(PREVIOUS)
        if previous is None or self.mu == 0:
            return
        model = job.context.model
        job.memory["global"] = _Frozen(model, job.context.origin)
        job.memory["previous"] = _Frozen(model, torch.from_numpy(previous))
        layer = model.module.get_submodule(model.spec.final_layer_name)
        job.memory["hook"] = layer.register_forward_pre_hook(lambda _, inputs: _keep(job.memory, inputs))

    def loss(
        self, job: LocalRun, features: torch.Tensor, logits: torch.Tensor, loss: torch.Tensor
    ) -> torch.Tensor:
        if "hook" not in job.memory:
            return loss
        own = job.memory["representation"].flatten(1)
        of_global, of_previous = job.memory["global"](features), job.memory["previous"](features)
        return loss + self.mu * contrastive_loss(own, of_global, of_previous, self.temperature)

    def end(self, job: LocalRun) -> None:
        if "hook" in job.memory:
            job.memory["hook"].remove()
        sent: Vector = job.context.model.vector()
        # A training that diverged is refused by the server; the client forgets it too.
        if np.isfinite(sent).all():
            job.context.state[PREVIOUS] = sent


def _keep(memory: dict[str, Any], inputs: tuple[torch.Tensor, ...]) -> None:
    memory["representation"] = inputs[0]


class _Frozen:
    """A copy of the model with other parameters that only gives representations."""

    def __init__(self, model: FlatModel, parameters: torch.Tensor) -> None:
        self._memory: dict[str, Any] = {}
        self._module = copy.deepcopy(model.module).eval()
        FlatModel(self._module, model.device).load(parameters.to(model.device))
        layer = self._module.get_submodule(model.spec.final_layer_name)
        layer.register_forward_pre_hook(lambda _, inputs: _keep(self._memory, inputs))

    @torch.no_grad()
    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        self._module(features)
        representation: torch.Tensor = self._memory["representation"]
        return representation.flatten(1)
