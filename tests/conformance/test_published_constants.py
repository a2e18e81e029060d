"""Defaults that papers or their authors' code state: changing one silently would change what is compared."""

import pytest

from muster.aggregation import aggregators
from muster.selection import selectors
from muster.training import algorithms

SELECTION = {
    "terraform": {"min_clients": 4, "max_iterations": 8, "quartiles": (0.25, 0.75), "outer_weights": "count"},
    "probe-fairness": {"beta": 0.3, "epsilon": 0.05, "temperature": 0.7, "pool_factor": 2, "probe_batches": 2},
    "diversity-score": {"alpha": 0.5, "lam": 0.5, "epsilon": 0.01, "js": "divergence", "unit": "bits"},
    "feddiverse": {
        "pretraining_rounds": 1,
        "cross": "signed",
        "gce_q": 0.3,
        "biased_steps": 50,
        "estimate_batch": 28,
    },
    "astrafl": {"homogeneity": "l2", "threshold": "mean", "budget": "strict", "homogeneity_weight": 0},
    "oort": {"round_penalty": 2, "exploration": 0.9, "exploration_decay": 0.98, "exploration_min": 0.2}
    | {"pacer_step": 20, "pacer_delta": 5, "round_threshold": 30, "clip_bound": 0.95, "cut_off": 0.95},
    "hics": {"lam": 10, "gamma": 4, "temperature": 0.0025, "ward_on": "rows", "within": "size"},
    "fedcor": {"dimension": 15, "noise": 0.01, "discount": 0.8, "warmup": 25, "interval": 5, "annealing": 0.9},
    "hcsfed": {"groups": 3, "ratio": 1e-5, "alloc": "pairs"},
    "fedpns": {"alpha": 2, "beta": 0.7, "cap": 0.99},
    "fedcbs": {"exploration": 10},
    "fedcs": {"candidates": 0.1, "deadline": 180},
    "divfl": {"refresh": "init", "greedy": "lazy", "subsample": 0.1},
    "dirichlet-participation": {"redraw": "never"},
}
AGGREGATION = {
    "simprox": {"lam": 0.7, "threshold": 0.9, "prev": "received", "post": "softmax", "temperature": 1},
    "simagg": {"scope": "layer", "distance": "l1", "anchor": "mean", "epsilon": 1e-5},
    "fedavgm": {"momentum": 0.9, "server_lr": 1},
    "fedadam": {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "bias_correction": "none"},
    "fedyogi": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fedadagrad": {"server_lr": 0.1, "beta1": 0},
    "fedatt": {"epsilon": 1.2, "norm": "frobenius"},
    "trimmed-mean": {"ratio": 0.2},
    "geometric-median": {"smoothing": 1e-6, "iterations": 100, "weights": "equal"},
}
ALGORITHMS = {"fedprox": {"mu": 0.1}, "moon": {"mu": 1, "temperature": 0.5}}


CASES = [
    pytest.param(registry, name, stated, id=f"{registry.kind} {name}")
    for registry, table in ((selectors, SELECTION), (aggregators, AGGREGATION), (algorithms, ALGORITHMS))
    for name, stated in table.items()
]


@pytest.mark.parametrize(("registry", "name", "stated"), CASES)
def test_defaults(registry, name, stated):
    options = {"clients_per_round": 4} if registry is selectors else {}
    built = registry.build(name, options).get_params()
    assert {option: built[option] for option in stated} == stated
