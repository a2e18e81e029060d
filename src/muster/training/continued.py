"""Optimisation, plain or proximal, with an optimiser that continues where the client's last training left it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from muster.training.base import LocalRun, algorithms
from muster.training.fedprox import FedProx

#: SGD's velocity, or Adam's mean of the gradients and of their squares; Adam's number of steps stands at the end.
FIRST, SECOND = "first_moment", "second_moment"
_ENTRIES = {"sgd": {FIRST: "momentum_buffer"}, "adam": {FIRST: "exp_avg", SECOND: "exp_avg_sq"}}


@algorithms.register("continued")
@dataclass(frozen=True)
class Continued(FedProx):
    """Plain optimisation; momentum and Adam's averages are kept on the client from one training to the next."""

    #: Strength μ of FedProx's term (μ/2)‖w − w_global‖², which may be added; 0: plain optimisation.
    mu: float = 0.0

    client_state: ClassVar[tuple[str, ...]] = (FIRST, SECOND)
    continues_optimiser: ClassVar[bool] = True
    #: Usually there is no term that a selector's factors could change.
    honours_pull_factors: ClassVar[bool] = False

    def correct(self, job: LocalRun) -> None:
        if self.mu:
            super().correct(job)

    @torch.no_grad()
    def begin(self, job: LocalRun) -> None:
        model, kept = job.context.model, job.context.state
        for name, entry in _ENTRIES[job.context.training.optimizer].items():
            if (flat := kept.get(name)) is None:
                continue
            parts = model.views(torch.from_numpy(flat))
            for parameter, part in zip(job.parameters, parts, strict=True):
                state = job.optimizer.state[parameter]
                state[entry] = torch.empty_like(parameter).copy_(part)
                if name == SECOND:
                    state["step"] = torch.tensor(float(flat[-1]), device=parameter.device)

    @torch.no_grad()
    def end(self, job: LocalRun) -> None:
        entries = _ENTRIES[job.context.training.optimizer]
        new = {name: flat for name, entry in entries.items() if (flat := _flat(job, entry)) is not None}
        # A training that diverged is refused by the server; the client forgets it too.
        if all(bool(flat.isfinite().all()) for flat in new.values()):
            job.context.state |= {name: flat.numpy() for name, flat in new.items()}


def _flat(job: LocalRun, entry: str) -> torch.Tensor | None:
    """One kind of the optimiser's numbers as a flat vector, with the number of steps at its end; None without."""
    states = [job.optimizer.state.get(parameter, {}) for parameter in job.parameters]
    used = [state for state in states if state.get(entry) is not None]
    if not used:
        return None
    flat = torch.zeros(job.context.spec.size + 1)
    for part, state in zip(job.context.model.views(flat), states, strict=True):
        if state.get(entry) is not None:  # no gradient has reached the others: zero, as it would be
            part.copy_(state[entry])
    flat[-1] = max(float(state.get("step", 0)) for state in used)
    return flat
