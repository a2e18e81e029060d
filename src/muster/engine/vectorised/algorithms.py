"""Local algorithms for many clients at once: what they add to gradients, and what they keep afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from muster.arrays import Floats, Ints, Vector
from muster.engine.vectorised.stack import Layout, one_or_each
from muster.engine.vectorised.trainer import Pull
from muster.training.base import LocalAlgorithm, Plain
from muster.training.feddyn import GRADIENT, FedDyn
from muster.training.fedprox import FedProx
from muster.training.scaffold import CONTROL, Scaffold, missing_broadcast

#: Exactly these: a class that is derived from one of them may do something else.
SUPPORTED: tuple[type[LocalAlgorithm], ...] = (Plain, FedProx, FedDyn, Scaffold)

States = Sequence[dict[str, Vector]]


def pull_of(
    algorithm: LocalAlgorithm, layout: Layout, states: States, broadcast: torch.Tensor | None, factors: Floats
) -> Pull:
    """What the algorithm adds to the gradients of clients with these states and factors of its strength."""
    match algorithm:
        case FedDyn():
            return Pull(algorithm.alpha, shift=-_kept(layout, states, GRADIENT))
        case Scaffold():
            if broadcast is None:
                raise missing_broadcast()
            own = _kept(layout, states, CONTROL)
            return Pull(shift=layout.gather(broadcast) - own, sums=torch.zeros_like(own))
    return Pull(one_or_each(algorithm.pull * factors))


def finish(
    algorithm: LocalAlgorithm, layout: Layout, pull: Pull, states: States, *, moved: torch.Tensor, steps: Ints
) -> torch.Tensor | None:
    """Renew the states after a training that moved the trained numbers so far; what else is sent, if anything."""
    match algorithm:
        case FedDyn():
            assert pull.shift is not None
            _keep(layout, states, GRADIENT, -pull.shift - algorithm.alpha * moved)
        case Scaffold():
            assert pull.sums is not None
            before = _kept(layout, states, CONTROL)
            done = torch.from_numpy(steps).unsqueeze(1)
            # Who did no step keeps what it has.
            _keep(layout, states, CONTROL, torch.where(done > 0, pull.sums / done, torch.nan))
            return _kept(layout, states, CONTROL) - before
    return None


def _kept(layout: Layout, states: States, name: str) -> torch.Tensor:
    """clients × trained numbers; zero for clients that have nothing yet."""
    rows = torch.zeros(len(states), layout.width)
    for row, state in zip(rows, states, strict=True):
        if name in state:
            row.copy_(layout.gather(torch.from_numpy(state[name])))
    return rows


def _keep(layout: Layout, states: States, name: str, rows: torch.Tensor) -> None:
    finite = rows.isfinite().all(dim=1).tolist()
    for row, state, sound in zip(rows, states, finite, strict=True):
        # A training that diverged is refused by the server; the client forgets it too.
        if sound:
            flat = torch.zeros(layout.spec.size)
            layout.scatter(row, flat)
            state[name] = flat.numpy()
