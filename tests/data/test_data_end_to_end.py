"""The real data sets from file to trained model: every partition scheme that fits, and two rounds of training."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import muster
from muster.core.randomness import generator
from muster.data.partition import schemes
from muster.data.sources import sources
from muster.experiment import from_dict

pytestmark = [pytest.mark.realdata, pytest.mark.timeout(600)]

SCHEMES = {
    "iid": {"clients": 40},
    "dirichlet": {"clients": 40, "alpha": 0.5},
    "multi-dirichlet": {"clients": 40, "alphas": [0.5, 1.0]},
    "classes-per-client": {"clients": 80, "classes": 2},
    "sampled-shards": {"clients": 40},
    "quantity-skew": {"clients": 40},
}
MODELS = {
    "mnist": {"name": "femnist-cnn"},
    "fashion-mnist": {"name": "fmnist-cnn"},
    "cifar10": {"name": "cifar10-cnn"},
    "cmnist": {"name": "group-norm-cnn"},
    "banking77": {"name": "text-classifier"},
    "shakespeare": {"name": "char-lstm"},
}
OPTIONS: dict[str, dict] = {"banking77": {"encoder": "tfidf"}, "shakespeare": {"max_windows": 20}}


@pytest.fixture(scope="module")
def cache():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.fixture
def options(cache, monkeypatch):
    """The options of a source whose files are in MUSTER_DATA; skips when they are not."""
    root = os.environ.get("MUSTER_DATA")
    monkeypatch.setenv("MUSTER_CACHE", cache)

    def of(name: str) -> dict:
        folder = "mnist" if name == "cmnist" else name
        if not root or not (Path(root) / folder).is_dir():
            pytest.skip(f"the real data set {folder} is not in MUSTER_DATA ({root or 'not set'})")
        return OPTIONS.get(name, {})

    return of


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "shakespeare"])
def test_partitions(options, name, scheme):
    dataset = sources.build(name, options(name))
    partition = schemes.build(scheme, SCHEMES[scheme]).divide(dataset, generator(0, "partition"))
    samples = partition.train.samples
    assert len(np.unique(samples)) == len(samples)
    assert partition.train.sizes.min() > 0
    assert len(samples) >= 0.9 * len(dataset.train)


@pytest.mark.parametrize(
    ("name", "scheme", "settings"),
    [
        ("shakespeare", "natural", {"min_samples": 10}),
        ("shakespeare", "iid", {"clients": 100}),
        ("cmnist", "group-skew", {"table": "cmnist-gsc"}),
        ("cifar10", "fixed-size-dirichlet", {"clients": 12, "betas": [0.1, 0.4, 0.5, 0.8]}),
    ],
)
def test_partitions_of_one_data_set(options, name, scheme, settings):
    dataset = sources.build(name, options(name))
    partition = schemes.build(scheme, settings).divide(dataset, generator(0, "partition"))
    assert len(np.unique(partition.train.samples)) == len(partition.train.samples)
    assert partition.train.sizes.min() >= 10


@pytest.mark.parametrize("name", MODELS)
def test_two_rounds(options, name):
    partition = {"scheme": "dirichlet", "clients": 100, "alpha": 0.5}
    if name == "shakespeare":
        partition = {"scheme": "natural", "min_samples": 10}
    experiment = from_dict(
        {
            "rounds": 2,
            "data": {"source": name} | options(name),
            "partition": partition,
            "model": MODELS[name],
            "training": {"lr": 0.05, "batch_size": 32},
            "selection": {"method": "random", "clients_per_round": 3},
            "aggregation": {"method": "fedavg"},
            "evaluation": {"every": 2},
        }
    )
    result = muster.run(experiment, workers=0)
    metrics = result.records[-1].metrics
    assert result.complete
    assert np.isfinite(result.parameters).all()
    assert 0.0 < metrics["loss"] < 10.0
