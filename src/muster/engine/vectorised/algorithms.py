"""Local algorithms for many clients at once: what they add to gradients, and what they keep afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from muster.core.arrays import Floats, Ints, Vector
from muster.engine.vectorised.stack import StackLayout, one_or_each
from muster.engine.vectorised.trainer import Pull
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.training.feddyn import GRADIENT, FedDyn
from muster.training.fedprox import FedProx
from muster.training.scaffold import CONTROL, Scaffold, missing_broadcast, way_of_a_unit_gradient

#: Exactly these: a class that is derived from one of them may do something else.
SUPPORTED: tuple[type[LocalAlgorithm], ...] = (Plain, FedProx, FedDyn, Scaffold)

States = Sequence[dict[str, Vector]]


def pull_of(
    algorithm: LocalAlgorithm, layout: StackLayout, states: States, broadcast: torch.Tensor | None, factors: Floats
) -> Pull:
    """What the algorithm adds to the gradients of clients with these states and factors of its strength."""
    match algorithm:
        case FedDyn():
            return Pull(algorithm.alpha, shift=-_kept(layout, states, GRADIENT))
        case Scaffold():
            if broadcast is None:
                raise missing_broadcast()
            return Pull(shift=layout.gather(broadcast) - _kept(layout, states, CONTROL))
    return Pull(one_or_each(algorithm.pull * factors))


@dataclass(frozen=True)
class Done:
    """What algorithms may look at when a slice has trained: one row per client."""

    #: How far the trained numbers moved.
    moved: torch.Tensor
    steps: Ints
    rates: Floats
    training: LocalTraining
    #: Gives the gradient of a client's whole loss at the global model, by row.
    local_gradient: Callable[[int], torch.Tensor]


def finish(
    algorithm: LocalAlgorithm, layout: StackLayout, pull: Pull, states: States, done: Done
) -> torch.Tensor | None:
    """Renew the states after a training; what else is sent, if anything."""
    match algorithm:
        case FedDyn():
            assert pull.shift is not None
            _keep(layout, states, GRADIENT, -pull.shift - algorithm.alpha * done.moved)
        case Scaffold():
            before = _kept(layout, states, CONTROL)
            new = _next_controls(algorithm, layout, pull, done)
            # A client that did no step keeps what it has.
            idle = torch.from_numpy(done.steps == 0).unsqueeze(1)
            _keep(layout, states, CONTROL, new.masked_fill_(idle, torch.nan))
            return _kept(layout, states, CONTROL) - before
    return None


def _next_controls(algorithm: Scaffold, layout: StackLayout, pull: Pull, done: Done) -> torch.Tensor:
    if algorithm.option == "I":
        return torch.stack([layout.gather(done.local_gradient(row)) for row in range(len(done.steps))])
    assert pull.shift is not None
    ways = torch.from_numpy(way_of_a_unit_gradient(done.training, done.steps, done.rates)).float()
    return -(done.moved / ways.unsqueeze(1)) - pull.shift


def _kept(layout: StackLayout, states: States, name: str) -> torch.Tensor:
    """clients × trained numbers; zero for clients that have nothing yet."""
    rows = torch.zeros(len(states), layout.width)
    for row, state in zip(rows, states, strict=True):
        if name in state:
            row.copy_(layout.gather(torch.from_numpy(state[name])))
    return rows


def _keep(layout: StackLayout, states: States, name: str, rows: torch.Tensor) -> None:
    finite = rows.isfinite().all(dim=1).tolist()
    for row, state, sound in zip(rows, states, finite, strict=True):
        # A training that diverged is refused by the server; the client forgets it too.
        if sound:
            flat = torch.zeros(layout.spec.size)
            layout.scatter(row, flat)
            state[name] = flat.numpy()
