"""Runs that are described with objects: another object that gives another result is another run."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from muster.config.experiment import Experiment
from muster.config.own_components import code_of_names
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.selection import selectors


def samples(**beside: np.ndarray) -> Samples:
    return Samples(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1]), **beside)


DATA = Dataset("mine", samples(), samples(), classes=2)
DIVIDED = FederatedData(DATA, Index.from_lists([[0, 1], [2, 3]]), Index.from_lists([[0, 1], [2, 3]]))


def loss(outputs, targets, power=1.0):
    return (outputs[:, 0] - targets).abs() ** power


class Loss:
    def __init__(self, power):
        self.power = power

    def __call__(self, outputs, targets):
        return loss(outputs, targets, self.power)

    def measured(self, outputs, targets):
        return self(outputs, targets)


class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 2)


@pytest.mark.parametrize(
    "alternatives",
    {
        "smoothing": [{"objective": nn.CrossEntropyLoss(label_smoothing=x)} for x in (0.0, 0.5)],
        "partial": [{"objective": functools.partial(loss, power=x)} for x in (1, 2)],
        "in a section": [{"objective": {"loss": functools.partial(loss, power=x)}} for x in (1, 2)],
        "callable": [{"objective": Loss(x)} for x in (1, 2)],
        "method": [{"objective": Loss(x).measured} for x in (1, 2)],
        "module": [{"model": Net(x)} for x in (1, 2)],
        "partial model": [{"model": functools.partial(Net, scale=x)} for x in (1, 2)],
        "data": [
            {"data": data}
            for data in (
                DATA,
                DATA.normalised([0.5, 0.5]),
                replace(DATA, classes=3),
                replace(DATA, task="segmentation"),
                replace(DATA, train=samples(owners=np.array([0, 0, 1, 1]))),
                replace(DATA, train=samples(owners=np.array([0, 1, 1, 1]))),
                replace(DATA, train=samples(attributes=np.array([0, 0, 1, 1]))),
                DIVIDED,
                replace(DIVIDED, test_index=None),
                replace(DIVIDED, test_index=Index.from_lists([[0], [1, 2, 3]])),
            )
        ],
    }.values(),
)
def test_another_object_is_another_run(alternatives):
    prints = [Experiment(**sections).fingerprint for sections in alternatives]
    assert len(set(prints)) == len(prints)
    assert prints == [Experiment(**sections).fingerprint for sections in alternatives]


def test_an_object_that_was_made_anew_is_the_same_run():
    for make in (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), lambda: Loss(2), lambda: Loss(2).measured):
        assert Experiment(objective=make()).fingerprint == Experiment(objective=make()).fingerprint
    assert Experiment(model=Net(1)).fingerprint == Experiment(model=Net(1)).fingerprint


def test_a_networks_numbers_are_no_setting():
    one, other = Net(1), Net(1)
    nn.init.zeros_(other.layer.weight)
    first, second = Experiment(model=one), Experiment(model=other)
    assert first.described() == second.described()
    assert first.fingerprint != second.fingerprint


CELL = """
from muster.selection import Selector, Train, selectors
@selectors.register("test-own-name")
class Mine(Selector):
    def round(self, fed):
        yield Train(fed.available[:3])
"""


@pytest.mark.parametrize(
    "selection",
    [
        {"method": "test-own-name"},
        {"method": "limit-gap", "rounds": 5, "selector": {"method": "test-own-name"}},
    ],
)
def test_a_method_that_was_registered_counts_with_its_code(selection, monkeypatch):
    monkeypatch.setattr(selectors, "_entries", dict(selectors._entries))

    def identity(text: str) -> str:
        exec(compile(text, "cell", "exec", dont_inherit=True), {"__name__": "__main__"})
        return Experiment(selection=selection).fingerprint

    assert identity(CELL) == identity(CELL) != identity(CELL.replace("3", "4"))


def test_a_loss_that_is_named_counts_with_its_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def identity(power: int) -> str:
        (tmp_path / "own_losses_of_a_test.py").write_text(
            f"def loss(y, t): return (y - t) ** {power}{' ' * power}"
        )
        monkeypatch.delitem(sys.modules, "own_losses_of_a_test", raising=False)
        importlib.invalidate_caches()
        return Experiment(objective={"loss": "own_losses_of_a_test:loss"}).fingerprint

    assert identity(2) == identity(2) != identity(3)
    assert len(Experiment(objective={"loss": "no_such_module:loss"}).fingerprint) == 16


def test_names_of_musters_own_methods_are_known_by_their_names_alone():
    assert code_of_names(Experiment(aggregation={"method": "fedadam"}).described()) == {}
    assert Experiment().fingerprint == "03354ff72968a1eb"  # as stores have it


SEEN: list[int] = []


def remembering(outputs, targets):
    SEEN.append(1)
    return loss(outputs, targets)


def test_a_settled_experiment_stays_what_it_is_in_another_process_too():
    SEEN.clear()
    experiment = Experiment(objective=remembering)
    settled = experiment.settled()
    before, described = experiment.fingerprint, experiment.described()
    SEEN.append(1)
    arrived = pickle.loads(cloudpickle.dumps(settled))
    assert settled.fingerprint == arrived.fingerprint == before != experiment.fingerprint
    assert settled.described() == arrived.described() == described
    # Another experiment is made from it as from any other.
    assert replace(settled, rounds=3).fingerprint == replace(experiment, rounds=3).fingerprint
    assert arrived.to_dict().keys() == experiment.to_dict().keys()
