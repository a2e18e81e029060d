"""What a client sees and leaves behind when it trains or measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from muster.core.arrays import Floats, Ints, Vector
from muster.core.parameters import FlatModel, ParameterSpec
from muster.training.objectives import Classification, Objective

if TYPE_CHECKING:
    from muster.training.base import LocalTraining

#: The client-state vectors that a probe leaves behind: the probed model (flat, `spec.size` numbers) followed by
#: two numbers, the steps that it took and the mini-batches that further training may skip; and the optimiser's
#: velocity (flat), where the training is to continue with it. The runtime starts the client's next training of the
#: same round from them, and forgets them when the global model has moved on.
PROBE, PROBE_VELOCITY = "probe", "probe_velocity"
PROBES = (PROBE, PROBE_VELOCITY)


@dataclass
class TrainOutcome:
    """By-products of local training."""

    #: Steps and samples of this training; what a probe did before is not counted again.
    steps: int = 0
    samples: int = 0
    #: Steps of a probe that the training continued from.
    credited_steps: int = 0
    #: Mean loss over the samples processed, each under the parameters it was trained on.
    mean_loss: float = float("nan")
    #: Mean squared per-sample loss over the first local epoch (only when a signal asks for it).
    mean_squared_loss: float = float("nan")
    #: Steps (a probe's included), each counted with the weight that its gradient has in the movement.
    progress: float = float("nan")


@dataclass(frozen=True)
class Trainings:
    """What several clients' trainings left: one row or number per client."""

    spec: ParameterSpec
    #: clients × parameters.
    movements: Vector
    #: Learning rates.
    lr: Floats
    #: See `TrainOutcome`.
    steps: Ints
    samples: Ints
    mean_loss: Floats
    mean_squared_loss: Floats
    progress: Floats

    def outcome(self, client: int) -> TrainOutcome:
        """The by-products of one of them."""
        return TrainOutcome(
            steps=int(self.steps[client]),
            samples=int(self.samples[client]),
            mean_loss=float(self.mean_loss[client]),
            mean_squared_loss=float(self.mean_squared_loss[client]),
            progress=float(self.progress[client]),
        )


@dataclass(frozen=True)
class Evaluated:
    """What a pass over all local samples in evaluation mode shows."""

    #: Mean loss.
    loss: float
    #: What enters the classification layer, one row per sample; None: no signal of the request looks at it.
    embeddings: torch.Tensor | None


@dataclass
class ClientContext:
    """What a client's measurement may look at. Only the measured numbers leave the client."""

    client: int
    features: torch.Tensor
    labels: torch.Tensor
    #: Number of classes in the federation (not on this client).
    classes: int
    #: The model, holding the global parameters (asked) or the trained ones (reported).
    model: FlatModel
    #: The global parameters that this exchange started from.
    origin: torch.Tensor
    #: This client's own generator for this exchange.
    rng: np.random.Generator
    #: How this federation trains locally (probes and mini-batch losses follow it).
    training: LocalTraining
    #: Makes the generator that the client's next training will draw its batches from: a probe that uses it sees
    #: exactly the first batches of that training.
    training_rng: Callable[[], np.random.Generator]
    #: The learning rate of this client's training; of the round, where it is asked before one.
    lr: float
    round: int = 0
    #: How many rounds the run has.
    rounds: int = 0
    attributes: Ints | None = None
    attribute_values: int | None = None
    #: Movement after training, flat (report only).
    movement: Vector | None = None
    outcome: TrainOutcome | None = None
    #: Named vectors that stay with the client between exchanges; a measurement may read and write them.
    state: dict[str, Vector] = field(default_factory=dict)
    #: Seconds to (receive, compute, send) when devices are modelled.
    device_times: Floats | None = None
    #: Some signal of the request looks at what enters the classification layer (`Signal.embeds`).
    embeds: bool = False
    #: The pass that the signals of a request share (`Signal.evaluates`), once one of them has needed it.
    evaluation: Evaluated | None = None
    #: Changes the pictures of a training step, given its number, at random; None: they stay as they are.
    augment: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    #: What is learnt: the loss of outputs and targets.
    objective: Objective = Classification()  # noqa: RUF009 (frozen)

    @property
    def spec(self) -> ParameterSpec:
        return self.model.spec

    @property
    def size(self) -> int:
        return len(self.labels)
