"""The same experiment gives the same bits on Flower's messages as in the local engine."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.aggregation.base import aggregators
from muster.engine.flower.server_app import run_on_grid

CLIENTS = 6
FEDERATION = {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 0.5}

METHODS = {
    "random": {"selection": {"method": "random", "clients_per_round": 3}},
    "power-of-choice": {"selection": {"method": "power-of-choice", "clients_per_round": 3}},
    "terraform": {"selection": {"method": "terraform", "clients_per_round": 6, "min_clients": 2}},
    "probe-fairness": {"selection": {"method": "probe-fairness", "clients_per_round": 3}},
    "diversity-score": {"selection": {"method": "diversity-score", "clients_per_round": 3}},
    "feddiverse": {
        "selection": {"method": "feddiverse", "clients_per_round": 3, "biased_steps": 4, "attribute_steps": 2}
    },
    "simprox": {
        "selection": {"method": "random", "clients_per_round": 5},
        "aggregation": {"method": "simprox"},
        "algorithm": {"method": "fedprox", "mu": 0.1},
    },
}


def compare(local: muster.Result, remote: muster.Result) -> None:
    assert np.array_equal(local.parameters, remote.parameters)
    assert local.selections == remote.selections
    assert str(local.metrics) == str(remote.metrics)
    assert local.ledger.total_disclosed() == remote.ledger.total_disclosed()


@pytest.mark.parametrize("method", METHODS)
def test_bits(tiny, grid_of, method):
    experiment = tiny(rounds=5, partition=FEDERATION, **METHODS[method])
    compare(muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment))


@pytest.mark.parametrize("algorithm", ["scaffold", "moon", "feddyn"])
def test_client_state(tiny, grid_of, algorithm):
    matching = next(
        (n for n in aggregators if algorithm in (aggregators.get(n).requires_algorithm or ())), "fedavg"
    )
    experiment = tiny(
        rounds=4,
        partition=FEDERATION,
        selection={"method": "random", "clients_per_round": 4},
        algorithm={"method": algorithm},
        aggregation={"method": matching},
    )
    compare(muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment))
