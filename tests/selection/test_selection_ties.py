"""Clients that cannot be told apart are chosen equally often, whatever their ids: by every registered method."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from muster.selection.base import selectors
from muster.server.testing import FakeFederation

CLIENTS, CHOSEN, ROUNDS, SEEDS = 10, 3, 5, 120
#: A correct method passes all tests here but for a chance of about one in a thousand, and the seeds are fixed.
LEVEL = 1e-5

#: Options without which a method cannot be built, or that make it choose at all.
OPTIONS = {
    "fedcs": {"candidates": 0.8, "clients_per_round": CHOSEN},
    "fedcor": {"clients_per_round": CHOSEN, "warmup": 2, "interval": 3, "steps": (10, 5)},
    "feddiverse": {"clients_per_round": CHOSEN, "pretraining_rounds": 0},
    "terraform": {"clients_per_round": 8, "min_clients": 2, "max_iterations": 2},
    "retrain-random": {"clients_per_round": 8, "min_clients": 2, "max_iterations": 2},
    "within": {
        "pool": {"method": "random", "clients_per_round": 7},
        "inner": {"method": "high-loss", "clients_per_round": CHOSEN},
    },
    "warmup": {
        "rounds": 2,
        "first": {"method": "random", "clients_per_round": CHOSEN},
        "then": {"method": "high-loss", "clients_per_round": CHOSEN},
    },
    "mix": {
        "first": {"method": "random", "clients_per_round": CHOSEN},
        "second": {"method": "high-loss", "clients_per_round": CHOSEN},
    },
    "limit-gap": {"rounds": 4, "selector": {"method": "random", "clients_per_round": CHOSEN}},
}

#: Other ways through a method.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("astrafl", {"budget": "ceil"}),
    ("astrafl", {"features": "labels"}),
    ("cluster", {"groups": "silhouette"}),
    ("cluster", {"features": "update"}),
    ("cluster", {"pick": "medoid"}),
    ("clustered-similarity", {"features": "last_layer"}),
    ("diversity-score", {"pick": "top"}),
    ("divfl", {"greedy": "stochastic", "subsample": 0.5}),
    ("fedcbs", {"mode": "greedy"}),
    ("feddiverse-qp", {"rule": "greedy"}),
    ("hcsfed", {"alloc": "neyman", "ratio": 0.5}),
    ("hics", {"ward_on": "condensed"}),
    ("hics", {"fallback_var": 0.0}),
    ("high-loss", {"signal": "last_train_loss"}),
    ("oort", {"blacklist_rounds": 0}),
    ("oort", {"sample_window": 1.0}),
    ("oort", {"speed": "profiled"}),
    ("pisces", {"credits": 1, "compared_least": 2, "neighbours": 2}),
    ("power-of-choice", {"variant": "rpow-d"}),
    ("power-of-choice", {"d": CLIENTS}),
    ("probe-fairness", {"init_last": "never", "pool_factor": 4.0}),
    ("probe-fairness", {"beta": 0.0, "epsilon": 0.4, "gap": 1, "force_scope": "all"}),
    ("refl", {"rank": "throughout", "hold_off": 1}),
    ("tifl", {"interval": 2, "testers": 1, "retier": 2}),
]

CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in selectors.names()] + VARIANTS


class Alike(FakeFederation):
    """Clients of one size that all give the same answers, other ones in every round, and are equally fast."""

    def __init__(self, seed):
        super().__init__(
            CLIENTS,
            sizes=np.full(CLIENTS, 60),
            seed=seed,
            rounds=20,
            seconds=np.full(CLIENTS, 7.0),
            presence=np.full(CLIENTS, 0.5),
        )

    def values(self, signal, clients):
        return super().values(signal, np.full_like(clients, 4))


def made(name, options):
    own = OPTIONS.get(name, {"clients_per_round": CHOSEN})
    return selectors.build(name, own | options)


def chosen_by_id(name, options):
    """How often each client was in the last training of the first and of the last round, and how many were."""
    counts, sizes = np.zeros((2, CLIENTS)), np.zeros((2, SEEDS))
    for seed in range(SEEDS):
        federation, selector = Alike(seed), made(name, options)
        rounds = federation.run(selector, ROUNDS)
        for i, played in enumerate((rounds[0], rounds[-1])):
            counts[i, played.trained] += 1
            sizes[i, seed] = len(played.trained)
    return counts, sizes


def p_value(counts, sizes):
    """Of the hypothesis that every set of the same size was equally likely.

    Then a client is in a set of m with probability m/n, and two clients' counts have the correlation −1/(n − 1).
    """
    n, share = len(counts), sizes / len(counts)
    variance = np.sum(share * (1 - share))
    if not variance:
        return 1.0  # everybody trained each time
    statistic = (n - 1) / n * np.sum((counts - counts.mean()) ** 2) / variance
    return chi2.sf(statistic, n - 1)


@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[name + "".join(f" {k}={v}" for k, v in o.items()) for name, o in CASES]
)
def test_clients_that_are_alike_are_chosen_equally_often(name, options):
    counts, sizes = chosen_by_id(name, options)
    for when, row, size in zip(("first", "last"), counts, sizes, strict=True):
        assert p_value(row, size) > LEVEL, f"{when} round: {row / SEEDS}"


def test_the_test_finds_a_preference():
    rng = np.random.default_rng(0)
    odds = np.linspace(1.0, 3.0, CLIENTS)
    counts = np.zeros(CLIENTS)
    for _ in range(SEEDS):
        counts[rng.choice(CLIENTS, CHOSEN, replace=False, p=odds / odds.sum())] += 1
    assert p_value(counts, np.full(SEEDS, CHOSEN)) < LEVEL
