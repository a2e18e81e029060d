"""Steps inside the backward pass, as clients take them: whether they happen, and what they give."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Place
from muster.signals.probe import ProbeNorm
from muster.training.base import LocalAlgorithm, LocalTraining, Plain, batches
from muster.training.descent import DescendingLinear, PlainDescent
from muster.training.fedprox import FedProx

WIDTH, CLIENTS, SIZE, LR = 260, 4, 23, 0.1


def federation() -> FederatedData:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(CLIENTS * SIZE, 6)).astype(np.float32)
    train = Samples(features, rng.integers(0, 3, len(features)))
    dataset = Dataset("made-up", train, Samples(features[:9], train.labels[:9]), classes=3)
    return FederatedData(dataset, Index.from_owners(np.repeat(np.arange(CLIENTS), SIZE), CLIENTS))


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, 3)
    )


def runtime(algorithm: LocalAlgorithm | None = None, **options: Any) -> ClientRuntime:
    training = LocalTraining(lr=LR, batch_size=5, **options)
    return ClientRuntime(federation(), network(), training, algorithm or Plain(), seed=1)


def trained(made: ClientRuntime, state: dict[str, Any] | None = None) -> torch.Tensor:
    origin = torch.from_numpy(runtime().model.vector())
    movement = torch.empty_like(origin)
    made.train(ClientTask.of("train", 2, Place(0, 0, 0), lr=LR), origin, movement, {} if state is None else state)
    return movement


def fuses(made: ClientRuntime, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the large layer has no gradient when the others take their step."""
    large = made.model.module[2]
    assert isinstance(large, DescendingLinear)
    seen: set[bool] = set()
    plain_step = PlainDescent.step

    def step(self: PlainDescent) -> None:
        seen.add(large.weight.grad is None)
        plain_step(self)

    monkeypatch.setattr(PlainDescent, "step", step)
    trained(made)
    (answer,) = seen
    return answer


def test_plain_training_fuses(monkeypatch) -> None:
    assert fuses(runtime(), monkeypatch)
    assert fuses(runtime(weight_decay=0.1), monkeypatch)


def test_whatever_looks_at_gradients_has_them(monkeypatch) -> None:
    assert not fuses(runtime(FedProx(mu=0.1)), monkeypatch)
    assert not fuses(runtime(clip_norm=1.0), monkeypatch)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_the_model_is_that_of_a_plain_loop(weight_decay: float) -> None:
    made, model = runtime(weight_decay=weight_decay), network()
    start, movement = copy.deepcopy(model), trained(made)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=weight_decay, foreach=False)
    features, labels = federation().client(2)
    for positions in batches(
        SIZE, made.training, made.training_order(ClientTask.of("train", 2, Place(0, 0, 0), lr=LR))
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[positions]), labels[positions]).backward()
        optimizer.step()
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    expected = torch.cat([(after - before).detach().ravel() for after, before in pairs])
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(movement, expected, rtol=1e-3, atol=1e-6)


def test_going_on_from_a_probe_gives_the_same_bits() -> None:
    made, state = runtime(), dict[str, Any]()
    origin = torch.from_numpy(made.model.vector())
    made.ask(ClientTask.of("ask", 2, Place(0, 0, 0), lr=LR, signals=(ProbeNorm(batches=2),)), origin, state)
    assert state
    assert torch.equal(trained(made, state), trained(runtime()))


def test_workers_do_not_matter() -> None:
    def run(workers: int) -> muster.Result:
        return muster.run(
            muster.Experiment(
                seed=2,
                rounds=3,
                data=federation(),
                model=network(),
                training={"lr": LR, "batch_size": 5},
                selection={"method": "probe-fairness", "clients_per_round": 2},
                engine="processes" if workers else "inline",
            ),
            workers=workers,
        )

    alone, together = run(0), run(2)
    assert np.array_equal(alone.parameters, together.parameters)
    assert alone.selections == together.selections


def test_the_users_module_stays_as_it_was() -> None:
    module = network()
    experiment = muster.Experiment(
        rounds=1,
        data=federation(),
        model=module,
        training={"lr": LR},
        selection={"method": "random", "clients_per_round": 2},
        engine="inline",
    )
    muster.run(experiment, workers=0)
    assert not any(isinstance(layer, DescendingLinear) for layer in module.modules())
