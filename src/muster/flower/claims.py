"""What a client states must agree with what it was seen to do: its sample count is not taken on trust alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.flower.wire import WireError
from muster.signals.base import Signal
from muster.updates.filters import Filter, named

#: Noise and rounding may carry counts this far from the number of samples, relative to it.
_TOLERANCE = 1e-6


def check_simulable(filters: Sequence[Filter]) -> None:
    """Refuse attacks on the data: a node's data are its own, and no server should be able to spoil them."""
    for name, step in named(filters):
        if step.poisons:
            raise ConfigError(
                f"the filter '{name}' changes what clients train on, which a federation's nodes do not allow",
                fix="simulate it with `muster run`",
            )


def check_work(numbers: Mapping[str, float], planned: float, *, probed: bool) -> None:
    """Refuse an answer to a training that took fewer samples than the client's own count asks for.

    After a probe a part of the training is done already, and how many samples that were is not stated.
    """
    if probed:
        return
    if numbers["credited_steps"]:
        raise WireError(f"it counts {numbers['credited_steps']:g} steps of a probe that was not asked for")
    if numbers["samples"] < planned:
        raise WireError(
            f"it trained on {numbers['samples']:g} samples, but the number it states amounts to {planned:g}"
        )


def check_counts(
    values: Mapping[str, Floats], signals: Sequence[Signal], population: Population, client: int
) -> None:
    """Refuse counts of labels or attributes that do not add up to the number of samples that the client states."""
    size = int(population.sizes[client])
    for signal in signals:
        sensitivity = signal.sensitivity(population.classes)
        if sensitivity is None or not sensitivity.counts:
            continue
        total = float(values[signal.name].sum())
        if not abs(total - size) <= _TOLERANCE * size + 0.5:
            raise WireError(f"its '{signal.name}' adds up to {total:g} samples, but it claims to have {size}")
