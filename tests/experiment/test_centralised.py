"""Centralised training against a bare PyTorch loop with PyTorch's own schedulers; resume; what is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import muster
from muster.config.centralised import pooled
from muster.config.experiment import Experiment, from_dict
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.engine.evaluation import Predictions, summarise
from muster.experiment.components import build_data
from muster.experiment.parts import build_parts
from muster.models import build_model
from muster.server.ledger import MODEL_UPDATE, RAW_DATA
from muster.server.loop import Observer
from muster.training.base import LocalTraining, batches

SEED, ROUNDS, LR = 4, 8, 0.05
#: The server adds up a start and a movement in float32; that rounds where PyTorch does not.
TOLERANCE = 2e-6

#: Schedule → our options, and PyTorch's scheduler that they mean.
SCHEDULES: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "step": ({"decay_every": 3}, lambda o: lr_scheduler.StepLR(o, 3, 0.5)),
    "multistep": ({"milestones": [2, 5]}, lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.5)),
    "plateau": ({"patience": 0}, lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5, eps=0)),
    "exponential": ({"decay": 0.8}, lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
    "one-cycle": (
        {"final_share": 4e-6},
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=LR, total_steps=ROUNDS, cycle_momentum=False),
    ),
    "cosine": ({"period": ROUNDS}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS)),
    "cosine to the last round": (
        {"schedule": "cosine"},
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=ROUNDS - 1),
    ),
    "warm-restarts": (
        {"period": 2, "period_growth": 2},
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2, T_mult=2),
    ),
}
#: The same for schedules that move with every one of a round's 15 mini-batches.
PER_BATCH = {
    "one-cycle": (
        {"final_share": 4e-6, "momentum_range": [0.85, 0.95]},
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=LR, steps_per_epoch=15, epochs=ROUNDS),
    ),
    "one-cycle, constant momentum": (
        {"schedule": "one-cycle", "final_share": 4e-6},
        lambda o: lr_scheduler.OneCycleLR(o, LR, total_steps=15 * ROUNDS, cycle_momentum=False),
    ),
    "cosine": ({"period": ROUNDS}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=15 * ROUNDS)),
}


def experiment(training: dict, **changes) -> Experiment:
    partition = {"scheme": "dirichlet", "clients": 6, "alpha": 0.3}
    training = {"mode": "centralised", "batch_size": 100, **training}
    values = {"seed": SEED, "rounds": ROUNDS, "partition": partition, "training": training, **changes}
    return from_dict(values)


def bare_loop(
    config: Experiment, optimizer: torch.optim.Optimizer, module: nn.Module, make_scheduler, per_batch=False
):
    """Plain training; only the order of the batches is Muster's. Gives the losses on the test set."""
    data = build_data(config)
    dataset = data.dataset

    def tensors(samples):
        return dataset.normalisation.apply(torch.from_numpy(samples.features)), torch.from_numpy(samples.labels)

    features, labels = tensors(dataset.train)
    test_features, test_labels = watched = tensors(dataset.test)
    if data.validation is not None:
        kept = np.ones(len(labels), dtype=bool)
        kept[data.validation] = False
        watched = features[~kept], labels[~kept]
        features, labels = features[kept], labels[kept]
    scheduler = make_scheduler(optimizer)
    training = LocalTraining(batch_size=100)
    losses = []
    for epoch in range(ROUNDS):
        module.train()
        for rows in batches(len(labels), training, generator(SEED, "train", epoch, 0, 0)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features[rows]), labels[rows]).backward()
            optimizer.step()
            if per_batch:
                scheduler.step()
        module.eval()
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(module(test_features), test_labels).item())
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            with torch.no_grad():
                scheduler.step(nn.functional.cross_entropy(module(watched[0]), watched[1]).item())
        elif not per_batch:
            scheduler.step()
    return losses


def model(config: Experiment) -> nn.Module:
    dataset = build_data(config).dataset
    return build_model("mlp", dataset.sample_shape, dataset.classes, seed=SEED)


def flat(module: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()


def wobble(config: Experiment, make_scheduler, end: np.ndarray) -> float:
    """How far off the bare loop ends when it begins one rounding away: what rounding may cost."""
    module = model(config)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.nextafter(p, torch.tensor(torch.inf)))
    bare_loop(config, torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9), module, make_scheduler)
    return float(np.abs(flat(module) - end).max())


@pytest.mark.parametrize("name", SCHEDULES)
def test_equals_a_bare_loop_with_each_scheduler(name):
    options, make = SCHEDULES[name]
    config = experiment({"lr": LR, "momentum": 0.9, "schedule": name} | options)
    module = model(config)
    losses = bare_loop(config, torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9), module, make)
    result = muster.run(config, workers=0)
    tolerance = TOLERANCE + 4 * wobble(config, make, flat(module))
    np.testing.assert_allclose(result.parameters, flat(module), atol=tolerance)
    np.testing.assert_allclose(result.series("loss")[1], losses, rtol=1e-5)
    constant = muster.run(experiment({"lr": LR, "momentum": 0.9}), workers=0)
    assert not np.allclose(constant.parameters, flat(module), atol=20 * tolerance)


@pytest.mark.parametrize("name", PER_BATCH)
def test_equals_a_bare_loop_with_schedulers_that_step_with_every_batch(name):
    options, make = PER_BATCH[name]
    config = experiment({"lr": LR, "momentum": 0.9, "schedule": name, "schedule_per": "batch"} | options)
    module = model(config)
    sgd = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9)
    losses = bare_loop(config, sgd, module, make, per_batch=True)
    result = muster.run(config, workers=0)
    np.testing.assert_allclose(result.parameters, flat(module), atol=TOLERANCE)
    np.testing.assert_allclose(result.series("loss")[1], losses, rtol=1e-5)


def test_a_plateau_of_the_validation_loss_is_that_of_a_bare_loop():
    training = {"lr": 2 * LR, "momentum": 0.9}
    followed, constant = (
        experiment(training | schedule, data={"source": "digits", "validation": 300})
        for schedule in ({"schedule": "plateau", "patience": 0}, {})
    )
    module = model(followed)
    sgd = torch.optim.SGD(module.parameters(), lr=2 * LR, momentum=0.9)
    bare_loop(followed, sgd, module, SCHEDULES["plateau"][1])
    result = muster.run(followed, workers=0)
    np.testing.assert_allclose(result.parameters, flat(module), atol=TOLERANCE)
    assert not np.allclose(muster.run(constant, workers=0).parameters, flat(module), atol=100 * TOLERANCE)


def test_equals_a_bare_loop_with_adam():
    config = experiment({"lr": 0.005, "optimizer": "adam"})
    module = model(config)
    adam = torch.optim.Adam(module.parameters(), lr=0.005)
    bare_loop(config, adam, module, lambda o: lr_scheduler.ConstantLR(o, factor=1.0))
    np.testing.assert_allclose(muster.run(config, workers=0).parameters, flat(module), atol=TOLERANCE)


def test_the_same_with_any_workers_and_after_a_stop(tmp_path):
    training = {"lr": 0.05, "momentum": 0.9, "schedule": "plateau", "patience": 0}
    config = experiment(training)
    whole = muster.run(config, workers=0)

    class StopAfterThree(Observer):
        rounds = 0

        def wants_stop(self) -> bool:
            self.rounds += 1
            return self.rounds == 3

    stopped = muster.run(config, workers=2, out=tmp_path, observers=[StopAfterThree()])
    assert len(stopped.records) == 3
    resumed = muster.run(config, workers=2, out=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    assert [record.metrics for record in resumed.records] == [record.metrics for record in whole.records]


def test_sections_of_a_federation_count_for_nothing():
    plain = experiment({})
    full = experiment(
        {},
        selection={"method": "terraform", "clients_per_round": 5},
        aggregation={"method": "fedadam"},
        algorithm={"method": "fedprox", "mu": 1.0},
        privacy={"mechanism": "laplace", "epsilon": 1.0},
    )
    assert full.fingerprint == plain.fingerprint
    assert full.unused() == ["algorithm", "selection", "aggregation", "privacy"]
    assert plain.unused() == []
    assert plain.title == "centralised"
    assert full.described()["selection"]["clients_per_round"] == 1
    # What was written is kept, for a run in the other mode.
    federated = full.with_options(["training.mode=federated"])
    assert federated.described()["selection"]["method"] == "terraform"
    assert federated.unused() == []


def test_ledger_and_clients_own_test_data():
    result = muster.run(experiment({}, rounds=2), workers=0)
    costs, samples = result.ledger.total(), len(build_data(experiment({})).dataset.train)
    assert (costs.client_trainings, costs.samples) == (2, 2 * samples)
    assert (costs.bytes_down, costs.bytes_up) == (0, 0)
    told = result.ledger.total_disclosed()
    assert RAW_DATA in told
    assert MODEL_UPDATE not in told
    row = result.metrics[-1]
    assert row["participant_accuracy"] == pytest.approx(row["client_accuracy_mean"])
    assert len(result.records[-1].client_accuracy) == 6


def test_the_pool_is_the_union_of_the_clients():
    data = build_data(experiment({}))
    one = pooled(data)
    assert one.clients == 1
    np.testing.assert_array_equal(one.train_index.samples, np.unique(data.train_index.samples))
    assert one.test_index is data.test_index


def test_steps_instead_of_epochs():
    result = muster.run(experiment({"steps": 3}, rounds=2), workers=0)
    assert result.ledger.total().local_steps == 6


def test_clients_elsewhere_are_refused():
    with pytest.raises(ConfigError, match="centralised"):
        build_parts(experiment({}), make_engine=lambda _: pytest.fail("built"))


def test_unknown_mode():
    with pytest.raises(ConfigError, match=r"training\.mode"):
        muster.run(replace(Experiment(), training={"mode": "decentralised"}), workers=0)


def test_clients_of_which_every_test_sample_is_wrong_are_counted():
    """The last clients, too: their number is the test data's, for training data have one client."""
    data = pooled(build_data(experiment({})))
    predicted = (data.dataset.test.labels + 1) % data.classes
    found = summarise(data, Predictions(np.ones(len(predicted)), predicted))
    assert found.client_correct.tolist() == [0] * 6
    assert found.client_loss_sum.tolist() == found.client_count.tolist()
