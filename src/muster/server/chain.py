"""What every answer goes through on the server before it is aggregated, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.aggregation.base import Aggregator
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.training.base import LocalAlgorithm, algorithms
from muster.updates.clip import Clip
from muster.updates.filters import Draws, Filter, Filtered, Side, named, without
from muster.updates.guard import Guard
from muster.updates.table import Updates


@dataclass(frozen=True)
class Objections(Filter):
    """An aggregator's own reasons not to use an update, on the guard's path."""

    aggregator: Aggregator

    changes: ClassVar[bool] = False

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        return without(updates, self.aggregator.objections(updates))


def server_chain(
    guard: Guard,
    looks: Iterable[Filter],
    own: Sequence[Filter],
    aggregator: Aggregator,
    clip_norm: float | None,
) -> tuple[tuple[str, Filter], ...]:
    """Guard, looks at what answers say, the run's own filters, what the aggregator objects to, its clipping: in
    this order, without those that have nothing to look at."""
    objects = type(aggregator).objections is not Aggregator.objections
    objections = (Objections(aggregator),) if objects else ()
    clips = () if clip_norm is None else (Clip(clip_norm),)
    return tuple(named((guard, *looks, *own, *objections, *clips)))


def check_filters(
    on_server: Sequence[Filter], on_clients: Sequence[Filter], clip_norm: float | None, algorithm: LocalAlgorithm
) -> None:
    """Refuse filters at the wrong place, and those that change movements where a method cannot work with that."""
    _check_side(on_server, "server", "pass it to the engine, which runs the clients")
    _check_side(on_clients, "client", "pass it to the server")
    if not algorithm.exact_movements:
        return
    changing = [f"the filter '{name}'" for name, step in (*named(on_clients), *named(on_server)) if step.changes]
    if clip_norm is not None:
        changing.append("aggregation.clip_norm")
    if changing:
        raise ConfigError(
            f"{changing[0]} changes movements on their way, but with {algorithms.name_of(algorithm)} what each "
            "client keeps depends on the movement that it made: the server's half of the method and the clients' "
            "would never agree again",
            fix="leave it out; training.clip_norm bounds the clients' gradients, guard.max_norm refuses movements "
            "that are too long",
        )


def _check_side(steps: Sequence[Filter], side: Side, fix: str) -> None:
    for step in steps:
        if step.side != side:
            raise ConfigError(
                f"{type(step).__name__}: side is {step.side!r}, but it was given to the {side}'s side", fix=fix
            )
