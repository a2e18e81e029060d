"""How often a client is chosen that overstates what it reports, method by method: a table in Markdown.

python studies/attacks/liars.py              # 3 seeds; about ten minutes
python studies/attacks/liars.py --quick      # 1 seed, 4 rounds: does it work?
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import muster

#: Selection methods that ask clients for something, with options that let 20 rounds show it.
METHODS: dict[str, dict[str, Any]] = {
    "high-loss": {},
    "power-of-choice": {},
    "oort": {},
    "probe-fairness": {},
    "astrafl": {},
    "fedcor": {"warmup": 5, "interval": 3, "steps": [50, 20]},
    "hcsfed": {"ratio": 0.001},
    "fedcbs": {},
    "diversity-score": {},
    "cluster": {},
    "divfl": {},
    "feddiverse": {"estimate_lr": 0.01, "biased_steps": 5, "attribute_steps": 2},
    "fedcs": {"candidates": 0.5, "deadline": 1e6},
}
CLIENTS, PER_ROUND = 40, 8
LIE = {"method": "lying-signals"}
SETTINGS: dict[str, dict[str, Any]] = {
    "honest": {},
    "× 10": {"factor": 10.0},
    "÷ 10": {"factor": 0.1},
    "1e300": {"lie": "huge"},
}
BOUNDS: dict[str, dict[str, Any]] = {
    "× 10, over_median = 1": {"signal_over_median": 1.0},
    "× 10, quantile = 0.5": {"signal_quantile": 0.5},
}


def chosen(method: str, seed: int, rounds: int, lie: dict[str, Any], limits: dict[str, Any]) -> float:
    """In which share of the rounds the liar was told to train. Who lies depends on the seed alone."""
    liar = int(np.random.default_rng(seed).integers(CLIENTS))
    experiment = muster.Experiment(
        seed=seed,
        rounds=rounds,
        partition={"scheme": "dirichlet", "clients": CLIENTS, "alpha": 0.5},
        model={"name": "mlp", "hidden": [16]},
        training={"lr": 0.1, "batch_size": 16},
        selection={"method": method, "clients_per_round": PER_ROUND} | METHODS[method],
        devices={"model": "lognormal"} if method == "fedcs" else {},
        filters=[LIE | {"clients": [liar]} | lie] if lie else [],
        limits=limits,
        evaluation={"every": rounds},
    )
    result = muster.run(experiment, workers=0)
    told = [
        any(liar in (*training.clients, *training.rejected, *training.failed) for training in record.trainings)
        for record in result.records
    ]
    return float(np.mean(told))


def main() -> None:
    quick = "--quick" in sys.argv
    seeds, rounds = (range(1), 4) if quick else (range(3), 20)
    columns = {name: (lie, {}) for name, lie in SETTINGS.items()}
    columns |= {name: (SETTINGS["× 10"], limits) for name, limits in BOUNDS.items()}
    print("| method | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for method in METHODS:
        cells = [
            f"{np.mean([chosen(method, seed, rounds, lie, limits) for seed in seeds]):.0%}"
            for lie, limits in columns.values()
        ]
        print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
