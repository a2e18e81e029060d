"""Which engine runs the clients of this machine: a function of model, local algorithm and device alone."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from muster.core.errors import ConfigError
from muster.data.federated import FederatedData
from muster.engine.device import resolve_device
from muster.engine.local import LocalEngine
from muster.engine.vectorised import VectorisedEngine, why_not
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.objectives import Classification, Objective

Kind = Literal["auto", "vectorised", "processes", "inline"]


def choose_engine(
    kind: Kind,
    data: FederatedData,
    module: nn.Module,
    training: LocalTraining,
    algorithm: LocalAlgorithm,
    *,
    workers: int | None,
    device: str,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
    **options: Any,
) -> LocalEngine:
    """The engine that was asked for, or with "auto" the fastest of those that can run this."""
    if kind == "inline":
        if workers:
            raise ConfigError(
                f'engine.kind = "inline" with {workers} workers', fix='leave the workers out, or use "processes"'
            )
        workers = 0
    device = resolve_device(device)
    options |= {"workers": workers, "device": device, "objective": objective}
    if kind == "vectorised":
        return VectorisedEngine(data, module, training, algorithm, **options)
    if kind == "auto":
        obstacle = why_not(module, algorithm, device, training, objective)
        if obstacle is None:
            reason = "every layer can be computed for many clients at once"
            return VectorisedEngine(data, module, training, algorithm, reason=reason, **options)
        options["reason"] = f"not vectorised: {obstacle}"
    return LocalEngine(data, module, training, algorithm, **options)
