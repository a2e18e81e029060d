"""SCAFFOLD, the client's part: gradients corrected by control variates (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from muster.errors import ConfigError
from muster.training.base import Job, LocalAlgorithm, algorithms

#: The client's control variate, kept between its trainings.
CONTROL = "scaffold_control"
#: What the client sends: new minus old control variate.
CONTROL_CHANGE = "control_change"


@algorithms.register("scaffold")
@dataclass(frozen=True)
class Scaffold(LocalAlgorithm):
    """Adds the difference of the server's and the client's control variate to every gradient.

    The client's next variate is the mean of its mini-batch gradients along the local path. For plain SGD this is
    the paper's second option, c_k − c + (w − w_k)/(Kη); unlike that expression it also fits momentum and Adam.
    """

    client_state: ClassVar[tuple[str, ...]] = (CONTROL,)
    extra: ClassVar[tuple[str, ...]] = (CONTROL_CHANGE,)
    requires_aggregation: ClassVar[tuple[str, ...] | None] = ("scaffold",)

    def begin(self, job: Job) -> None:
        if job.broadcast is None:
            raise missing_broadcast()
        model = job.context.model
        correction = job.broadcast.to(model.device, copy=True)
        own = job.context.state.get(CONTROL)
        if own is not None:
            correction -= torch.from_numpy(own).to(model.device)
        job.memory["correction"] = model.views(correction)
        job.memory["gradients"] = [torch.zeros_like(parameter) for parameter in job.parameters]

    @torch.no_grad()
    def correct(self, job: Job) -> None:
        parts = zip(job.parameters, job.memory["gradients"], job.memory["correction"], strict=True)
        for parameter, gradients, correction in parts:
            if parameter.grad is not None:
                gradients.add_(parameter.grad)
                parameter.grad.add_(correction)

    @torch.no_grad()
    def end(self, job: Job) -> None:
        spec, state = job.context.spec, job.context.state
        old = state.get(CONTROL, np.zeros(spec.size, dtype=np.float32))
        new = torch.zeros(spec.size)
        for part, gradients in zip(job.context.model.views(new), job.memory["gradients"], strict=True):
            part.copy_(gradients).div_(max(1, job.steps))
        # A training that diverged is refused by the server; the client forgets it too.
        if job.steps and bool(new.isfinite().all()):
            state[CONTROL] = new.numpy()
        assert job.extra is not None
        job.extra[CONTROL_CHANGE] = state.get(CONTROL, old) - old


def missing_broadcast() -> ConfigError:
    return ConfigError(
        "scaffold: the server sent no control variate",
        fix="set [aggregation] method = 'scaffold' together with [algorithm] method = 'scaffold'",
    )
