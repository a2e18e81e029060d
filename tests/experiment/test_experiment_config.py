"""An experiment's description: what identifies it, and mistakes in Python code."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.errors import ConfigError
from muster.experiment.runner import build_data


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
