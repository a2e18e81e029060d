"""Shared by all tests: a federation that is small enough to train in a second."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import muster
from muster.experiment import from_dict

#: Fixtures that tests of several rooms share.
pytest_plugins = ("fixtures.bert", "fixtures.clients", "fixtures.results")

# How quickly examples are made depends on what else the machine is doing, and on coverage.
settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("muster")

TINY: dict[str, Any] = {
    "rounds": 3,
    "data": {"source": "digits"},
    "partition": {"scheme": "dirichlet", "clients": 12, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 16},
    "selection": {"method": "random", "clients_per_round": 5},
    "aggregation": {"method": "fedavg"},
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Tests run side by side; more threads would only get into each other's way.
    torch.set_num_threads(1)


@pytest.fixture
def tiny():
    """Makes experiments on digits with 12 clients; keyword arguments replace or extend sections."""

    def make(**changes: Any) -> muster.Experiment:
        values = {key: dict(value) if isinstance(value, dict) else value for key, value in TINY.items()}
        for key, value in changes.items():
            # A section that names another component starts afresh; one that does not adds to what is there.
            named = isinstance(value, dict) and {"method", "name", "scheme", "source"} & set(value)
            if isinstance(value, dict) and not named:
                values[key] = values.get(key, {}) | value
            else:
                values[key] = value
        return from_dict(values)

    return make
