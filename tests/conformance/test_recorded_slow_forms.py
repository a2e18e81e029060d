"""Recorded runs again, as bare PyTorch loops in float64: digests are Muster's own output, these are not.

Only the data, the first model, the selections and the order of mini-batches are Muster's.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.randomness import generator
from muster.experiment import from_dict
from muster.experiment.components import build_data, build_network
from muster.training.base import LocalTraining, batches

_spec = importlib.util.spec_from_file_location("recorded_runs", Path(__file__).with_name("recorded_runs.py"))
assert _spec is not None
assert _spec.loader is not None
recorded_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recorded_runs)

#: What float32 loses in six rounds.
TOLERANCE = 2e-5


class Federation:
    """The recorded federation: its clients' samples, its first model, and plain local training."""

    def __init__(self, changes: dict[str, Any]) -> None:
        self.config = from_dict(recorded_runs.BASE | changes)
        self.data = build_data(self.config)
        self.module = build_network(self.config, self.data).double()
        self.training = LocalTraining(**self.config.training)

    def vector(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()

    def trained(
        self, origin: torch.Tensor, client: int, round: int, correction: torch.Tensor | float = 0.0
    ) -> tuple[torch.Tensor, int]:
        """Where a client arrives, and with how many steps; a correction is added to every gradient."""
        nn.utils.vector_to_parameters(origin.clone(), self.module.parameters())
        parameters, steps = list(self.module.parameters()), 0
        optimizer = torch.optim.SGD(parameters, lr=self.training.lr, momentum=self.training.momentum)
        features, labels = self.data.client(client)
        rng = generator(self.config.seed, "train", round, 0, client)
        for rows in batches(len(labels), self.training, rng):
            loss = nn.functional.cross_entropy(self.module(features[rows].double()), labels[rows])
            gradients = torch.autograd.grad(loss, parameters)
            gradient = torch.cat([part.flatten() for part in gradients]) + correction
            for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
            steps += 1
        return self.vector(), steps

    def size(self, client: int) -> int:
        return len(self.data.client(client)[1])


def way(training: LocalTraining, steps: int) -> float:
    """How far an optimiser goes with a constant gradient of 1: by going there."""
    place = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([place], lr=training.lr, momentum=training.momentum)
    for _ in range(steps):
        place.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    return -place.item()


def fedavg(federation: Federation, selections: list[list[int]]) -> torch.Tensor:
    model = federation.vector()
    for round, clients in enumerate(selections):
        sizes = torch.tensor([federation.size(client) for client in clients], dtype=torch.float64)
        models = torch.stack([federation.trained(model, client, round)[0] for client in clients])
        model = (sizes[:, None] * models).sum(dim=0) / sizes.sum()
    return model


def median(federation: Federation, selections: list[list[int]]) -> torch.Tensor:
    model = federation.vector()
    for round, clients in enumerate(selections):
        models = [federation.trained(model, client, round)[0].numpy() for client in clients]
        model = torch.from_numpy(np.median(models, axis=0))
    return model


def scaffold(federation: Federation, selections: list[list[int]]) -> torch.Tensor:
    """Algorithm 1 of the paper with its option II; steps times rate are the way of the optimiser."""
    model = federation.vector()
    server = torch.zeros_like(model)
    own: dict[int, torch.Tensor] = {}
    for round, clients in enumerate(selections):
        movements, changes = [], []
        for client in clients:
            mine = own.get(client, torch.zeros_like(model))
            arrived, steps = federation.trained(model, client, round, server - mine)
            new = mine - server + (model - arrived) / way(federation.training, steps)
            movements.append(arrived - model)
            changes.append(new - mine)
            own[client] = new
        model = model + torch.stack(movements).mean(dim=0)
        server = server + torch.stack(changes).sum(dim=0) / federation.config.partition["clients"]
    return model


SCAFFOLD = recorded_runs.RUNS["scaffold keeps state on clients"]
CASES = {
    "fedavg, one by one": (fedavg, recorded_runs.RUNS["fedavg, one by one"]),
    "median needs the whole matrix": (median, recorded_runs.RUNS["median needs the whole matrix"]),
    "scaffold keeps state on clients": (scaffold, SCAFFOLD),
    # Not recorded: the case in which the audit found the numbers wrong.
    "scaffold with momentum": (
        scaffold,
        SCAFFOLD | {"training": {"lr": 0.02, "epochs": 2, "batch_size": 16, "momentum": 0.9}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_run_equals_its_slow_form(name):
    slow, changes = CASES[name]
    result = muster.run(from_dict(recorded_runs.BASE | changes), workers=0)
    selections = [training.clients for record in result.records for training in record.trainings]
    expected = slow(Federation(changes), selections).numpy()
    assert np.abs(expected - result.parameters).max() < TOLERANCE
    start = Federation(changes).vector().numpy()
    assert np.abs(expected - start).max() > 1000 * TOLERANCE, "the model has moved"
