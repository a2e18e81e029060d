"""The probe norm: how far a client would pull the model in its first mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.signals.base import NOT_NEGATIVE, Range, Signal, signals
from muster.training.base import LocalTraining, batches
from muster.training.context import PROBE, PROBE_VELOCITY, PROBES, ClientContext


@signals.register("probe_norm")
@dataclass(frozen=True)
class ProbeNorm(Signal):
    """Distance that the model moves in a few mini-batches of local training.

    The probed model stays on the client. When the client trains in the same round, it continues from there: the
    probe takes its mini-batches from the generator of that training, so that nothing is done twice.
    The training starts with a new optimiser, or continues with the probe's, whose velocity stays on the client
    too. The global parameters are loaded again at the end.
    """

    name: ClassVar[str] = "probe_norm"
    discloses: ClassVar[str] = "how far the client's data pulls the model (one number)"
    uses_model: ClassVar[bool] = True
    client_state: ClassVar[tuple[str, ...]] = PROBES
    ranks: ClassVar[bool] = True

    #: Mini-batches of the probe, at most one epoch.
    batches: int = 2
    #: Passes over these mini-batches.
    steps: int = 1
    #: How much of the training that follows counts as done: the probe's mini-batches, or a whole epoch.
    credit: Literal["batches", "epoch"] = "batches"
    #: Whether the training that follows starts with a new optimiser, or continues with the probe's momentum.
    optimizer_state: Literal["fresh", "kept"] = "fresh"

    def samples(self, size: int, batch_size: int) -> int:
        return self.steps * min(size, self.batches * batch_size)

    def spares(self, size: int, training: LocalTraining) -> int:
        return training.samples_in(self._left_out(size, training), size)

    def _left_out(self, size: int, training: LocalTraining) -> int:
        """Mini-batches that the training leaves out: no more than it has."""
        epoch = training.epoch_for(size)
        credited = epoch if self.credit == "epoch" else self.steps * min(self.batches, epoch)
        return min(credited, training.steps_for(size))

    def allowed(self, population: Population) -> Range:
        return NOT_NEGATIVE

    def measure(self, client: ClientContext) -> Floats:
        epoch = client.training.epoch_for(client.size)
        chosen = list(
            islice(batches(client.size, client.training, client.training_rng()), min(self.batches, epoch))
        )
        # A probe takes no more steps than the training that it is a part of.
        taken = (self.steps * chosen)[: client.training.steps_for(client.size)]
        client.model.load(client.origin)
        velocity = _train_on(client, taken)
        probed = client.model.vector()
        client.model.load(client.origin)
        skip = self._left_out(client.size, client.training)
        client.state[PROBE] = np.append(probed, np.array([len(taken), skip], dtype=np.float32))
        if self.optimizer_state == "kept" and velocity is not None:
            client.state[PROBE_VELOCITY] = velocity
        # Running statistics and batch counters would swamp the distance.
        trainable = client.spec.trainable
        moved = probed[trainable].astype(np.float64) - client.origin[trainable].cpu().numpy()
        return np.array([np.linalg.norm(moved)])


def _train_on(client: ClientContext, chosen: list[Ints]) -> Vector | None:
    """Take a step on each of these mini-batches; the velocity after them, flat, where there is momentum."""
    module, training = client.model.module, client.training
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = training.make_optimizer(parameters, client.lr)
    client.model.train()
    with training.fusing(module, optimizer):
        for step, positions in enumerate(chosen):
            index = torch.from_numpy(positions).to(client.model.device)
            features = client.features[index]
            if client.augment is not None:
                features = client.augment(features, step)
            module.zero_grad(set_to_none=True)
            loss = client.objective.mean_loss(module(features), client.labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            optimizer.step()
    if not training.momentum:
        return None
    flat = torch.zeros(client.spec.size)
    for part, parameter in zip(client.model.views(flat), parameters, strict=True):
        if (velocity := optimizer.state[parameter].get("momentum_buffer")) is not None:
            part.copy_(velocity)
    return flat.numpy()
