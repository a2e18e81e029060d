"""The quickstart's federation: digits over 40 clients with very different label mixes, a few methods."""

from __future__ import annotations

from typing import Any

from muster.config.experiment import Experiment, from_dict

_FEDERATION: dict[str, Any] = {
    "data": {"source": "digits"},
    # Eight clients each of nearly one class, of two or three, …, up to nearly all classes.
    "partition": {"scheme": "multi-dirichlet", "clients": 40, "alphas": [0.05, 0.1, 0.2, 0.5, 2.0]},
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"lr": 0.05, "epochs": 2, "batch_size": 8},
    "aggregation": {"method": "fedavg"},
}

_METHODS: dict[str, dict[str, Any]] = {
    "random": {"method": "random"},
    "terraform": {"method": "terraform"},
    "power-of-choice": {"method": "power-of-choice"},
    "diversity-score": {"method": "diversity-score"},
}


def experiments(rounds: int, clients_per_round: int = 12, seed: int = 0) -> list[Experiment]:
    """One experiment for each method; everything else is the same."""
    return [
        from_dict(
            _FEDERATION
            | {"name": name, "seed": seed, "rounds": rounds}
            | {"selection": selection | {"clients_per_round": clients_per_round}}
        )
        for name, selection in _METHODS.items()
    ]
