"""The engine does the work that it is credited with: its result is that of a plain, sequential FedAvg loop.

The loop below is written against PyTorch alone. It shares two things with Muster: who was selected, and the order
of the batches (`batches` with the generator of round and client). Everything else is its own: parameters as a
state dict, no flat vectors, no shared memory, no `channels_last`, no streaming, averages in float64.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.randomness import generator
from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples
from muster.training.base import LocalTraining, batches

SEED, CLASSES = 3, 4
MEAN, STD, SCALE = 0.4, 0.3, 1 / 255


def federation(sizes: list[int], shape: tuple[int, ...]) -> FederatedData:
    rng = np.random.default_rng(SEED)
    total = sum(sizes)
    train = Samples(rng.integers(0, 256, (total, *shape), dtype=np.uint8), rng.integers(0, CLASSES, total))
    test = Samples(rng.integers(0, 256, (20, *shape), dtype=np.uint8), rng.integers(0, CLASSES, 20))
    owners = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    normalisation = Normalisation((MEAN,), (STD,), SCALE)
    return FederatedData(
        Dataset("made-up", train, test, CLASSES, normalisation), Index.from_owners(owners, len(sizes))
    )


def plain_fedavg(
    module: nn.Module, data: FederatedData, rounds: list[list[int]], training: LocalTraining, rate_rounds: int
) -> tuple[nn.Module, int]:
    """McMahan et al.'s algorithm, client after client; the global model and the samples that were trained on."""
    model, processed = copy.deepcopy(module), 0
    for number, clients in enumerate(rounds):
        states, weights = [], []
        for client in clients:
            mine = np.flatnonzero(np.isin(np.arange(len(data.dataset.train)), data.train_index[client]))
            features = (torch.tensor(data.dataset.train.features[mine]).float() * SCALE - MEAN) / STD
            labels = torch.tensor(data.dataset.train.labels[mine])
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(
                local.parameters(),
                lr=training.learning_rate(number, rate_rounds),
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                foreach=False,
            )
            for positions in batches(len(mine), training, generator(SEED, "train", number, 0, client)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(features[positions]), labels[positions]).backward()
                optimizer.step()
                processed += len(positions)
            states.append(local.state_dict())
            weights.append(len(mine))
        shares = np.array(weights) / sum(weights)
        mean = {
            name: sum(share * state[name].double() for share, state in zip(shares, states, strict=True)).float()
            for name in states[0]
        }
        model.load_state_dict(mean)
    return model, processed


def two_layers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 16), nn.ReLU(), nn.Linear(16, classes))


CASES = {
    "dense network": (two_layers, (3, 2, 2), {"lr": 0.1, "batch_size": 8, "epochs": 2}, 4),
    "momentum, decay, schedule": (
        two_layers,
        (3, 2, 2),
        {"lr": 0.1, "batch_size": 5, "momentum": 0.9, "weight_decay": 0.01, "schedule": "cosine"},
        4,
    ),
    "FEMNIST network": ({"name": "femnist-cnn"}, (1, 28, 28), {"lr": 0.2, "batch_size": 16}, 2),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_parameters_and_work_are_those_of_a_plain_loop(case: str, workers: int) -> None:
    model, shape, options, rounds = CASES[case]
    data = federation([17, 40, 23, 9, 31, 16], shape)
    experiment = muster.Experiment(
        seed=SEED,
        rounds=rounds,
        data=data,
        model=model,
        training=options,
        selection={"method": "random", "clients_per_round": 4},
        aggregation={"method": "fedavg"},
    )
    initial = muster.experiment.build_parts(experiment, workers=0)
    module = muster.models.build_model(
        model["name"] if isinstance(model, dict) else model, shape, CLASSES, seed=SEED
    )
    start = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    np.testing.assert_array_equal(start, initial.engine.initial_parameters())

    result = muster.run(experiment, workers=workers)

    cohorts = [[int(c) for c in trainings[0]] for trainings in result.selections]
    assert [len(cohort) for cohort in cohorts] == [4] * rounds
    expected, processed = plain_fedavg(module, data, cohorts, LocalTraining(**options), rounds)
    assert result.ledger.total().samples == processed
    flat = np.concatenate([p.detach().numpy().ravel() for p in expected.parameters()])
    moved = np.abs(flat - start).max()
    assert moved > 0.01, "the loop must have trained for the comparison to mean something"
    np.testing.assert_allclose(result.parameters, flat, rtol=0, atol=2e-4 * moved)
