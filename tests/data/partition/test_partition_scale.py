"""100,000 clients in seconds, whatever the scheme."""

import time
from typing import Any

import numpy as np
import pytest

from muster.data.partition import schemes

CLIENTS = 100_000
SCHEMES: dict[str, dict[str, Any]] = {
    "iid": {},
    "dirichlet": {"min_size": 1, "on_small": "fill"},
    "multi-dirichlet": {"alphas": [5.0, 10.0], "min_share": 0.0},
    "classes-per-client": {"classes": 2},
    "class-subsets": {"min_classes": 1, "max_classes": 3},
    "sampled-shards": {},
    "fixed-size-dirichlet": {"betas": [0.1], "size": 10, "max_tries": 1},
    "quantity-skew": {"min_size": 1},
    "natural": {"clients": CLIENTS, "keys_per_client": 3},
    "group-skew": {"class_skew": [25_000, 25_000], "correlation": [25_000, 25_000], "size": 4, "share": 0.75},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_many_clients(name, make_dataset, check_partition):
    grouped = name == "group-skew"
    labels = np.arange(1_000_000) % (2 if grouped else 50)
    attributes = np.arange(1_000_000) // 2 % 2
    owners = np.random.default_rng(0).integers(CLIENTS, size=len(labels))
    dataset = make_dataset(
        labels, labels[:10_000], attributes=(attributes, None), owners=(owners, owners[:10_000]), values=2
    )
    scheme = schemes.build(name, {"clients": CLIENTS, **SCHEMES[name]})
    start = time.perf_counter()
    partition = scheme.divide(dataset, np.random.default_rng(0))
    assert time.perf_counter() - start < 15
    check_partition(partition, dataset, CLIENTS, complete=name not in ("multi-dirichlet", "group-skew"))


def test_every_scheme_is_measured():
    assert set(SCHEMES) == {name for name in schemes if schemes.get(name).__module__.startswith("muster.")}
