"""What a client states must agree with what it was seen to do: its sample count is not taken on trust alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from muster.core.arrays import Floats
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.flower.wire import WireError
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.updates.filters import Filter, named
from muster.updates.table import ANSWER_FIELDS

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


@dataclass(frozen=True)
class Ordered:
    """What the server knows of one client's training: enough to compute what an honest client states."""

    training: LocalTraining
    algorithm: LocalAlgorithm
    size: int
    #: Samples of the training that count as done with a probe; None: there was no probe.
    spared: int | None = None

    @cached_property
    def most(self) -> dict[str, float]:
        return {name: f.most(self.training, self.algorithm, self.size) for name, f in ANSWER_FIELDS.items()}


def check_work(numbers: Mapping[str, float], ordered: Ordered) -> None:
    """Refuse an answer to a training that took fewer samples or steps than the client's own count asks for."""
    samples, steps, batch = numbers["samples"], numbers["steps"], ordered.training.batch_size
    if numbers["credited_steps"] and ordered.spared is None:
        raise WireError(f"it counts {numbers['credited_steps']:g} steps of a probe that was not asked for")
    planned = ordered.most["samples"] - (ordered.spared or 0)
    if samples < planned:
        raise WireError(f"it trained on {samples:g} samples, but the number it states amounts to {planned:g}")
    if steps * batch < samples - ordered.algorithm.extra_samples(ordered.size):
        raise WireError(f"it trained on {samples:g} samples in {steps:g} steps, but a step has at most {batch}")


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
