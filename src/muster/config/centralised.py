"""Centralised training, the baseline without a federation, as one client that has all the data.

Its optimiser's state carries over from round to round and the server takes its model, so a round is an epoch (or
as many steps as `[training]` says) of plain training; evaluation, records, checkpoints and reports are those of
any run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.data.federated import FederatedData, Index

#: What takes the place of the sections that only a federation has.
SECTIONS: dict[str, Any] = {
    "algorithm": {"method": "continued"},
    "selection": {"method": "random", "clients_per_round": 1},
    "aggregation": {"method": "fedavg"},
    "availability": {},
    "devices": {},
    "pacing": {},
    "privacy": {},
    "filters": [],
    "limits": {},
}


def pooled(data: FederatedData) -> FederatedData:
    """One client with the training data of all; test data stay with their clients."""
    samples = np.unique(data.train_index.samples)
    index = Index(np.array([0, len(samples)]), samples)
    return FederatedData(data.dataset, index, data.test_index, data.validation)
