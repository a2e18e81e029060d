"""What similarity costs in units of FedAvg on the same matrix (needs a quiet machine)."""

import statistics
import time

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.simprox import SimProx


@pytest.mark.bench
@pytest.mark.parametrize(("clients", "parameters", "limit"), [(20, 11_000_000, 3.0), (100, 1_000_000, 4.0)])
def test_simprox_costs_a_few_times_fedavg(layout, cohort, clients, parameters, limit) -> None:
    rng = np.random.default_rng(0)
    updates, spec = cohort(rng.standard_normal((clients, parameters), dtype=np.float32)), layout([parameters])
    current = rng.standard_normal(parameters, dtype=np.float32)

    def seconds(method) -> float:
        start = time.perf_counter()
        method.aggregate(current, updates, spec)
        return time.perf_counter() - start

    pairs = [(seconds(SimProx()), seconds(FedAvg())) for _ in range(6)][1:]
    assert statistics.median(similar / plain for similar, plain in pairs) <= limit
