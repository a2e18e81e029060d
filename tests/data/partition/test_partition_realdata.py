"""The real data sets, divided by every scheme that fits them, and the papers' workloads on them."""

import os
from functools import cache

import numpy as np
import pytest

from muster.config.workloads import workload, workload_summaries
from muster.data.federated import Dataset, FederatedData
from muster.data.partition import schemes
from muster.data.sources.base import sources
from muster.experiment import from_dict
from muster.experiment.components import build_data

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("MUSTER_DATA" not in os.environ, reason="MUSTER_DATA is not set"),
]

HERE = ("mnist", "fashion-mnist", "cifar10", "shakespeare", "banking77", "cmnist")

BY_LABELS = {
    "iid": {"clients": 20},
    "dirichlet": {"clients": 20, "alpha": 0.3},
    "multi-dirichlet": {"clients": 20, "alphas": [0.3, 1.0]},
    "sampled-shards": {"clients": 20},
    "fixed-size-dirichlet": {"clients": 10, "betas": [0.5], "size": 100},
    "quantity-skew": {"clients": 20},
}


#: What the default options would need beyond a development install: the sentence encoder is an extra.
LIGHT = {"banking77": {"encoder": "tfidf"}}


@cache
def loaded(source: str, **options) -> Dataset:
    return sources.build(source, LIGHT.get(source, {}) | options)


def divided(dataset: Dataset, scheme: str, options) -> FederatedData:
    partition = schemes.build(scheme, options).divide(dataset, np.random.default_rng(0))
    return FederatedData(dataset, partition.train, partition.test)


@pytest.mark.parametrize("scheme", BY_LABELS)
@pytest.mark.parametrize("source", HERE)
def test_by_labels(source, scheme):
    fed = divided(loaded(source), scheme, BY_LABELS[scheme])
    assert fed.clients == BY_LABELS[scheme]["clients"]
    assert len(np.unique(fed.train_index.samples)) == len(fed.train_index.samples)
    assert fed.test_index.sizes.sum() > 0


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist", "cifar10", "banking77", "cmnist"])
def test_two_classes_a_client(source):
    fed = divided(loaded(source), "classes-per-client", {"clients": 40, "classes": 2})
    assert ((fed.label_histograms > 0).sum(axis=1) == 2).all()


def test_speakers():
    dataset = loaded("shakespeare")
    fed = divided(dataset, "natural", {"min_samples": 20})
    assert fed.clients > 100
    assert fed.sizes.min() >= 20
    for client in (0, fed.clients - 1):
        assert len(np.unique(dataset.train.owners[fed.train_index[client]])) == 1


@pytest.mark.parametrize(
    "name", [n for n in workload_summaries() if workload(n)["data"]["source"] in (*HERE, "cifar100", "pacs")]
)
def test_workloads(name):
    sections = workload(name)
    light = {"data": sections["data"] | LIGHT.get(sections["data"]["source"], {})}
    fed = build_data(from_dict({key: sections[key] for key in ("data", "partition")} | light))
    assert fed.clients >= sections["selection"]["clients_per_round"]
    assert fed.test_index is not None
