"""SCAFFOLD, the client's part: gradients corrected by control variates (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.training.accumulation import accumulation_norm
from muster.training.base import LocalAlgorithm, LocalRun, LocalTraining, algorithms
from muster.training.gradient import local_gradient

#: The client's control variate, kept between its trainings.
CONTROL = "scaffold_control"
#: What the client sends: new minus old control variate.
CONTROL_CHANGE = "control_change"


@algorithms.register("scaffold")
@dataclass(frozen=True)
class Scaffold(LocalAlgorithm):
    """Adds the difference of the server's and the client's control variate to every gradient.

    The client's next variate, by the paper's options: (I) the gradient of its loss at the model that it received,
    for one more pass over its data; (II) what its movement says about the gradients along the way, at no cost.
    """

    option: Literal["I", "II"] = "II"

    client_state: ClassVar[tuple[str, ...]] = (CONTROL,)
    extra: ClassVar[tuple[str, ...]] = (CONTROL_CHANGE,)
    requires_aggregation: ClassVar[tuple[str, ...] | None] = ("scaffold",)

    def check(self, population: Population) -> None:
        if self.option not in {"I", "II"}:
            raise ConfigError(f"scaffold: option is {self.option!r}", expected="'I' or 'II'")

    def check_training(self, training: LocalTraining) -> None:
        if self.option == "II":
            training.check_accumulates("SCAFFOLD's option II")

    def extra_samples(self, size: int) -> int:
        return size if self.option == "I" else 0

    def begin(self, job: LocalRun) -> None:
        if job.broadcast is None:
            raise missing_broadcast()
        context, model = job.context, job.context.model
        correction = job.broadcast.to(model.device, copy=True)
        own = context.state.get(CONTROL)
        if own is not None:
            correction -= torch.from_numpy(own).to(model.device)
        job.memory["correction"] = model.views(correction)
        if self.option == "I":
            job.memory["gradient"] = local_gradient(
                model, context.features, context.labels, context.training.batch_size, context.objective
            )

    @torch.no_grad()
    def correct(self, job: LocalRun) -> None:
        for parameter, correction in zip(job.parameters, job.memory["correction"], strict=True):
            if parameter.grad is None:  # without effect on this client's loss: its own gradient is zero
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(correction)

    @torch.no_grad()
    def end(self, job: LocalRun) -> None:
        state = job.context.state
        old = state.get(CONTROL, np.zeros(job.context.spec.size, dtype=np.float32))
        new = job.memory["gradient"] if self.option == "I" else self._from_movement(job)
        # A training that diverged is refused by the server; the client forgets it too.
        if job.steps and bool(new.isfinite().all()):
            state[CONTROL] = new.numpy()
        assert job.extra is not None
        job.extra[CONTROL_CHANGE] = state.get(CONTROL, old) - old

    @staticmethod
    def _from_movement(job: LocalRun) -> torch.Tensor:
        new = torch.zeros(job.context.spec.size)
        way = float(way_of_a_unit_gradient(job.context.training, job.steps, job.lr))
        parts = zip(
            job.context.model.views(new), job.memory["correction"], job.parameters, job.origin, strict=True
        )
        for part, correction, parameter, origin in parts:
            part.copy_((origin - parameter).div_(way).sub_(correction))
        return new


def way_of_a_unit_gradient(training: LocalTraining, steps: Ints | int, lr: Floats | float) -> Floats:
    """η‖a‖₁: how far this many local steps go with a constant gradient of 1.

    Option II divides the movement by it. Weight decay is left to the gradients: it is part of what is minimised.
    """
    norm = accumulation_norm(steps, lr=lr, momentum=training.momentum, nesterov=training.nesterov)
    return np.multiply(lr, norm)


def missing_broadcast() -> ConfigError:
    return ConfigError(
        "scaffold: the server sent no control variate",
        fix="set [aggregation] method = 'scaffold' together with [algorithm] method = 'scaffold'",
    )
