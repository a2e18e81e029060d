"""Signals that are contained in an update: the server measures them on what it gets, so they need not travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import FlatModel, ParameterSpec
from muster.engine.base import TrainOrder
from muster.signals.base import Signal
from muster.training.base import LocalTraining
from muster.training.context import ClientContext, TrainOutcome


@dataclass(frozen=True)
class _Layout:
    """All that such a signal needs to know about the model."""

    spec: ParameterSpec


def measure_on_update(
    signals: Sequence[Signal],
    order: TrainOrder,
    movement: Vector,
    outcome: TrainOutcome,
    *,
    lr: float,
    population: Population,
    training: LocalTraining,
) -> dict[str, Floats]:
    """The numbers that the client itself would have measured, to the bit."""
    context = ClientContext(
        client=-1,
        features=torch.empty(0),
        labels=torch.empty(0, dtype=torch.long),
        classes=population.classes,
        model=cast(FlatModel, _Layout(population.spec)),
        origin=torch.from_numpy(order.parameters),
        rng=np.random.default_rng(0),
        training=training,
        training_rng=lambda: np.random.default_rng(0),
        lr=lr,
        round=order.place.round,
        movement=movement,
        outcome=outcome,
    )
    return {signal.name: np.atleast_1d(signal.measure(context)) for signal in signals}
