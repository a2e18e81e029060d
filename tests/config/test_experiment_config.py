"""An experiment's description: what identifies it, and mistakes in Python code."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.config.experiment import merged
from muster.core.errors import ConfigError
from muster.experiment.components import build_data


def test_numpy_numbers_are_numbers():
    first, second = (muster.Experiment(seed=seed) for seed in np.arange(2))
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == muster.Experiment(seed=0).fingerprint
    assert first.described()["seed"] == 0


def test_data_that_was_handed_over_is_told_apart(tiny):
    schemes = {"scheme": "dirichlet", "clients": 12, "alpha": 0.5}, {"scheme": "iid", "clients": 12}
    first, second = (build_data(tiny(partition=scheme)) for scheme in schemes)
    again = build_data(tiny(partition=schemes[0]))
    assert tiny(data=first).fingerprint != tiny(data=second).fingerprint
    assert tiny(data=first).fingerprint == tiny(data=again).fingerprint


@pytest.mark.parametrize(
    "mistake",
    [
        {"selection": "random"},
        {"selection": muster.selection.Selector},
        {"aggregation": "fedavg"},
        {"algorithm": "fedprox"},
        {"data": "digits"},
        {"partition": "iid"},
        {"training": 0.1},
        {"rounds": "5"},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_what_is_neither_section_nor_component_is_named(mistake):
    (name,) = mistake
    with pytest.raises(ConfigError, match=f"bad value for '{name}'"):
        muster.run(muster.Experiment(**mistake), workers=0)


def test_another_method_keeps_the_options_that_all_methods_of_its_kind_have():
    """A server's learning rate is not FedAvgM's own: a row with FedNova must not quietly have another one."""
    base = {"aggregation": {"method": "fedavgm", "momentum": 0.95, "server_lr": 0.1, "clip_norm": 5.0}}
    other = merged(base, {"aggregation": {"method": "fednova"}})["aggregation"]
    assert other == {"method": "fednova", "server_lr": 0.1, "clip_norm": 5.0}, "momentum is the method's own"
    says_so = merged(base, {"aggregation": {"method": "fednova", "server_lr": 1.0}})["aggregation"]
    assert says_so["server_lr"] == 1.0
    same = merged(base, {"aggregation": {"method": "fedavgm", "momentum": 0.5}})["aggregation"]
    assert same["momentum"] == 0.5


def test_another_selector_or_algorithm_starts_afresh():
    """There is no option that all of them have."""
    base = {
        "selection": {"method": "random", "clients_per_round": 5},
        "algorithm": {"method": "fedprox", "mu": 0.1},
    }
    changed = merged(base, {"selection": {"method": "terraform"}, "algorithm": {"method": "plain"}})
    assert changed == {"selection": {"method": "terraform"}, "algorithm": {"method": "plain"}}


def test_nothing_said_about_selection_works_with_few_clients():
    assert muster.Experiment().selection == {"method": "random", "clients_per_round": 8}
    few = muster.Experiment(partition={"scheme": "iid", "clients": 5})
    assert few.selection == {"method": "random", "clients_per_round": 5}
    owners = np.arange(60) % 3
    own = muster.data.from_arrays(np.ones((60, 2), dtype=np.float32), owners, clients=owners)
    assert muster.Experiment(data=own).selection == {"method": "random", "clients_per_round": 3}
    said = muster.Experiment(data=own, selection={"method": "random", "clients_per_round": 8})
    assert said.selection["clients_per_round"] == 8, "what is said is not changed"
