"""SimProx's experiment on CIFAR-10 with a small network and three seeds: docs/results/simprox-cifar10.md.

    python benchmarks/simprox_cifar10.py                             run what is missing, write page and picture
    python benchmarks/simprox_cifar10.py --methods SimProx FedAvg    only these
    python benchmarks/simprox_cifar10.py --rounds 1 --seeds 0 --docs /tmp/try --runs /tmp/try     does it work?

Needs the data set in MUSTER_DATA. Can be stopped (Ctrl-C) and goes on with the same command.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from _runs import Study, options
from _simprox import cases, make_page

ROUNDS, SEEDS = 12, (0, 1, 2)


def small_cnn() -> nn.Module:
    """LeNet-5 for colour pictures, as in the non-IID benchmark of Li et al. (2022)."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


SHARED: dict[str, Any] = {
    "workload": "simprox-cifar10-resnet18",
    "model": small_cnn,
    # A tenth of the paper's local epochs, ten times its learning rate.
    "training": {"lr": 0.1, "epochs": 2},
    "selection": {"method": "sliding-window", "clients_per_round": 6},
}


def main() -> None:
    chosen = options(__doc__, ROUNDS, SEEDS)
    study = Study("simprox-cifar10", SHARED, cases(mu=0.01))
    make_page(study, chosen, "CIFAR-10, 20 clients, β = 0.5, sliding window of 6, LeNet-5")


if __name__ == "__main__":
    main()
